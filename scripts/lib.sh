# shellcheck shell=bash
# Shared by ./run, ./test and scripts/*: where things are kept, messages, and installing what is missing. Source it.
#
# Every need_* function is idempotent: it looks first, is silent and quick when nothing is missing, and says in one line
# what it is about to do otherwise. Nothing is written outside the repository but the cache folder and Debian packages.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Tools and model files that outlive a checkout. SEMIF_CACHE moves all of it, SEMIF_MODELS the model files alone: the program knows only
# the latter.
[ -z "${SEMIF_CACHE:-}" ] || export SEMIF_MODELS=${SEMIF_MODELS:-$SEMIF_CACHE/models}
SEMIF_CACHE=${SEMIF_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/semif}
SEMIF_TOOLS=$SEMIF_CACHE/tools
SEMIF_FILES=${SEMIF_MODELS:-$SEMIF_CACHE/models}
export ROOT SEMIF_CACHE SEMIF_TOOLS SEMIF_FILES

say() { printf '%s\n' "$*" >&2; }
step() { printf '\n== %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }
# The same for bad arguments.
refuse() { printf 'error: %s\n' "$*" >&2; exit 2; }
have() { command -v "$1" >/dev/null 2>&1; }

# Runs a command as root: directly, or through sudo where we are somebody else.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif have sudo; then sudo "$@"
  else return 1
  fi
}

# need_debian "what it is for" PACKAGE...   installs Debian packages, or says which are missing where that is not possible.
need_debian() {
  local why=$1; shift
  have apt-get || die "$why is missing, and this is no Debian or Ubuntu system. Install the equivalent of these packages: $*"
  say "installing with apt-get, for $why: $*"
  if ! { as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq \
      && as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } </dev/null >"$(log_file apt)" 2>&1; then
    tail -n 15 "$(log_file apt)" >&2
    die "could not install $* ($why). Run as root or with sudo: apt-get install $*"
  fi
}

log_file() { mkdir -p "$SEMIF_CACHE/log"; printf '%s/log/%s.log' "$SEMIF_CACHE" "$1"; }

# --- Rust ----------------------------------------------------------------------------------------------------------

need_rust() {
  have cargo || die "cargo is not on PATH. Install Rust 1.95 or later (rustup's stable toolchain), then run this again."
  local wanted found
  wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml")
  found=$(rustc --version | awk '{print $2}')
  [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" = "$wanted" ] \
    || die "rustc $found is too old: $wanted or later is needed (rustup update stable)."
  # Some crates (the tokenizer's regex engine among them) compile C.
  have cc || need_debian "a C compiler" gcc libc6-dev
}

# The version of a crate in Cargo.lock.
locked_version() { awk -v name="$1" '$1=="name" && $3=="\""name"\"" {hit=1} hit && $1=="version" {gsub(/"/,"",$3); print $3; exit}' "$ROOT/Cargo.lock"; }

has_wasm_target() {
  local dir
  # rustc prints the folder even where the target is not installed, so look into it.
  dir=$(rustc --print target-libdir --target wasm32-unknown-unknown 2>/dev/null) && compgen -G "$dir/libstd-*.rlib" >/dev/null
}

# need_wasm_rust   makes `cargo build --target wasm32-unknown-unknown` work in this shell, by exports only.
# People who have the target through rustup keep their toolchain; otherwise Debian's own compiler builds the standard
# library from its sources. There is no .cargo/config.toml on purpose: it would change everybody's builds.
need_wasm_rust() {
  need_rust
  # Leptos then makes fewer types, and less WASM.
  case ${CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS:=} in
    *erase_components*) ;;
    *) CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS+="${CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS:+ }--cfg erase_components" ;;
  esac
  export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS
  has_wasm_target && return
  if ! [ -x /usr/bin/rustc ] || ! [ -x /usr/bin/cargo ] || ! have wasm-ld \
    || ! [ -e "$(/usr/bin/rustc --print sysroot)/lib/rustlib/src/rust/library/Cargo.lock" ]; then
    need_debian "building for wasm32 (or: rustup target add wasm32-unknown-unknown)" rustc-web cargo-web rust-web-src lld
  fi
  local bin=$SEMIF_TOOLS/wasm-rust
  mkdir -p "$bin"
  ln -sf /usr/bin/cargo /usr/bin/rustc "$bin/"
  export PATH="$bin:$PATH" RUSTC_BOOTSTRAP=1 CARGO_UNSTABLE_BUILD_STD=std,panic_abort CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=wasm-ld
}

# cargo_tool NAME VERSION [cargo install flags]   a cargo-installed program of exactly this version, first on PATH.
cargo_tool() {
  local name=$1 version=$2 crate=$1; shift 2
  [ "$name" = wasm-bindgen ] && crate=wasm-bindgen-cli
  local root=$SEMIF_TOOLS/$name-$version
  if have "$name" && [ "$("$name" --version 2>/dev/null | awk '{print $2}')" = "$version" ]; then return; fi
  if ! [ -x "$root/bin/$name" ]; then
    need_rust
    say "building $crate $version, once, into $root (several minutes)"
    # A wasm toolchain that this shell may have set up is not meant for programs of this machine.
    env -u RUSTC_BOOTSTRAP -u CARGO_UNSTABLE_BUILD_STD cargo install "$crate" --version "$version" --root "$root" "$@" </dev/null >"$(log_file "$name")" 2>&1 \
      || { tail -n 20 "$(log_file "$name")" >&2; die "could not build $crate $version"; }
    rm -rf "$root/target"
  fi
  export PATH="$root/bin:$PATH"
}

# Its version must equal that of the library in Cargo.lock. Not --locked: its own lock file is older than some compilers.
need_wasm_bindgen() { cargo_tool wasm-bindgen "$(locked_version wasm-bindgen)"; }

# Debian's binaryen 108 exits 0 and breaks the output; the npm package is the same program, built to WASM.
need_wasm_opt() {
  local dir=$SEMIF_TOOLS/binaryen-132
  if ! [ -x "$dir/bin/wasm-opt" ]; then
    have wasm-opt && wasm-opt --version 2>/dev/null | grep -q 'version 132' && return
    need_node
    say "installing binaryen 132 (wasm-opt) into $dir"
    npm_install "$dir" binaryen@132.0.0
    mkdir -p "$dir/bin"
    printf '#!/bin/sh\nexec node "%s/node_modules/binaryen/bin/wasm-opt" "$@"\n' "$dir" >"$dir/bin/wasm-opt"
    chmod +x "$dir/bin/wasm-opt"
  fi
  export PATH="$dir/bin:$PATH"
}

# --- Node.js and the browser -----------------------------------------------------------------------------------------

need_node() {
  have node || need_debian "Node.js" nodejs npm
  have npm || need_debian "npm" npm
}

npm_install() {
  local dir=$1; shift
  mkdir -p "$dir"
  (cd "$dir" && { [ -e package.json ] || echo '{"private":true}' >package.json; } && npm install --no-audit --no-fund --no-save --ignore-scripts "$@") \
    </dev/null >"$(log_file npm)" 2>&1 || { tail -n 15 "$(log_file npm)" >&2; die "npm could not install $*"; }
}

# need_browser   exports CHROMIUM (the program) and NODE_PATH (where playwright-core and axe-core are).
need_browser() {
  need_node
  if [ -z "${CHROMIUM:-}" ]; then
    local name
    for name in chromium chromium-browser google-chrome google-chrome-stable; do have "$name" && { CHROMIUM=$(command -v "$name"); break; }; done
    if [ -z "${CHROMIUM:-}" ]; then need_debian "a browser" chromium; CHROMIUM=/usr/bin/chromium; fi
  fi
  local dir=$SEMIF_TOOLS/playwright-1.64.1
  if ! [ -e "$dir/node_modules/playwright-core/package.json" ]; then
    say "installing playwright-core into $dir"
    npm_install "$dir" playwright-core@1.64.1
  fi
  if ! [ -e "$dir/node_modules/axe-core/axe.min.js" ]; then
    say "installing axe-core into $dir"
    npm_install "$dir" axe-core@4.14.1 playwright-core@1.64.1
  fi
  export CHROMIUM NODE_PATH=$dir/node_modules
}

# --- A Vulkan driver ---------------------------------------------------------------------------------------------------

LAVAPIPE_FOLDERS="/usr/share/vulkan/icd.d /usr/local/share/vulkan/icd.d /etc/vulkan/icd.d"

# Prints the ICD file of Mesa's software driver, if it is installed.
lavapipe_icd() {
  local dir file
  for dir in $LAVAPIPE_FOLDERS; do
    for file in "$dir"/lvp_icd*.json; do [ -e "$file" ] && { printf '%s\n' "$file"; return; }; done
  done
  return 1
}

# Mesa's device-select layer asks Wayland which GPU the desktop uses, and complains on stderr where there is no desktop.
[ -n "${XDG_RUNTIME_DIR:-}" ] || export NODEVICE_SELECT=1

# Any driver at all? A GPU's own, or the software one.
has_vulkan_driver() {
  [ -n "${VK_DRIVER_FILES:-}${VK_ICD_FILENAMES:-}" ] && return
  local dir
  for dir in $LAVAPIPE_FOLDERS "$HOME/.local/share/vulkan/icd.d"; do compgen -G "$dir/*.json" >/dev/null && return; done
  return 1
}

# Is there a GPU to hope for? Only for advice: the program itself looks at the adapters.
has_gpu() {
  [ "$(uname -s)" != Linux ] || [ -e /dev/nvidia0 ] || [ -e /dev/dxg ] || compgen -G '/dev/dri/renderD*' >/dev/null
}

# grep -q would end at the first hit, and pipefail then sees the writer die of a closed pipe.
need_vulkan() {
  [ "$(uname -s)" = Linux ] || return 0 # Metal and DX12 come with the system.
  has_vulkan_driver && ldconfig -p 2>/dev/null | grep 'libvulkan\.so\.1' >/dev/null && return
  need_debian "a Vulkan driver (Mesa's, which also runs without a GPU)" mesa-vulkan-drivers libvulkan1
}

# pin_lavapipe   tests run on the same software adapter everywhere, whatever GPU is there.
pin_lavapipe() {
  [ "$(uname -s)" = Linux ] || return 0
  if ! lavapipe_icd >/dev/null || ! ldconfig -p 2>/dev/null | grep 'libvulkan\.so\.1' >/dev/null; then
    need_debian "Mesa's software Vulkan driver" mesa-vulkan-drivers libvulkan1
  fi
  VK_DRIVER_FILES=$(lavapipe_icd) || die "mesa-vulkan-drivers is installed, but its lvp_icd file is in none of: $LAVAPIPE_FOLDERS"
  # The older name of the same setting, which loaders before 1.3.207 read.
  export VK_DRIVER_FILES VK_ICD_FILENAMES=$VK_DRIVER_FILES
}

# --- Python and model files --------------------------------------------------------------------------------------------

# need_python   a virtual environment in .venv with what the model generator needs; exports PYTHON.
need_python() {
  PYTHON=$ROOT/.venv/bin/python
  export PYTHON
  local wanted="numpy==2.4.6 gguf==0.19.0"
  [ -x "$PYTHON" ] && [ "$(cat "$ROOT/.venv/semif-packages" 2>/dev/null)" = "$wanted" ] && return
  have python3 || need_debian "Python" python3 python3-venv
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "python3 is $(python3 --version 2>&1), but numpy 2.4 needs Python 3.11 or later."
  say "making .venv with $wanted"
  # A half-made environment (no ensurepip, an interrupted run) is made anew.
  if ! "$PYTHON" -m pip --version >/dev/null 2>&1; then
    rm -rf "$ROOT/.venv"
    python3 -m venv "$ROOT/.venv" >/dev/null 2>&1 || { need_debian "Python's venv" python3-venv; rm -rf "$ROOT/.venv"; python3 -m venv "$ROOT/.venv"; }
  fi
  # shellcheck disable=SC2086
  "$PYTHON" -m pip install -q --disable-pip-version-check $wanted </dev/null >"$(log_file pip)" 2>&1 \
    || { tail -n 15 "$(log_file pip)" >&2; die "pip could not install $wanted"; }
  printf '%s' "$wanted" >"$ROOT/.venv/semif-packages"
}

# need_weights NAME...   real model files (smollm2, qwen25coder05) in $SEMIF_FILES, checked by size and SHA-256.
# Files that are here and right need neither a virtual environment nor the network.
need_weights() {
  ! { have python3 && python3 "$ROOT/scripts/models.py" check --dir "$SEMIF_FILES" "$@"; } || return 0
  need_python
  "$PYTHON" "$ROOT/scripts/models.py" weights --dir "$SEMIF_FILES" "$@" || die "could not get the model files: $*"
}

# need_tiny_models   the synthetic models of tests/fixtures/oracle in $SEMIF_FILES, checked by SHA-256.
need_tiny_models() {
  need_python
  "$PYTHON" "$ROOT/scripts/models.py" tiny --dir "$SEMIF_FILES" || die "could not make the test models"
}
