#!/usr/bin/env bash
# Packs everything that a bare GPU machine without network, Rust or Node.js needs to check this project, into numbered
# folders that are small enough to be sent one by one.
#
#   scripts/device/prepare.sh OUT [--no-code] [--no-chrome] [--no-weights] [--more FOLDER]
#
# OUT/01 is all that changes with the code (program, page, tests): make it anew with --no-chrome --no-weights.
# --more FOLDER adds its files (references and a vocabulary for full-size synthetic models).
# There: `scripts/device/check.sh stage FOLDER` for each, then `scripts/device/check.sh native` and `... chrome`.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/lib.sh

PIECE=56000000 # bytes of one folder at most; a call carries 64 MiB with the repository

out='' code=1 chrome=1 weights=1 more=''
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit ;;
    --no-code) code= ;;
    --no-chrome) chrome= ;;
    --no-weights) weights= ;;
    --more) more=${2:?--more wants a folder}; shift ;;
    *) out=$1 ;;
  esac
  shift
done
[ -n "$out" ] || die "where to? scripts/device/prepare.sh OUT"
mkdir -p "$out"
out=$(cd "$out" && pwd)

if [ -n "$code" ]; then
  program=${SEMIF_BIN:-target/release/semif}
  page=${SEMIF_DIST:-dist/web}
  [ -x "$program" ] || die "$program is missing: cargo build --release"
  need_python
  rm -rf "$out/01"
  mkdir -p "$out/01"
  cp "$program" "$out/01/semif"
  strip "$out/01/semif"
  # The page's tests are tracked files and travel by themselves.
  if [ -d "$page" ]; then tar -C "$page" -cJf "$out/01/page.tar.xz" .; else say "no page in $page (scripts/build-web): not packed"; fi
  "$PYTHON" -m pip download -q --disable-pip-version-check --no-deps -d "$out/01" gguf==0.19.0
  [ -z "$more" ] || cp "$more"/* "$out/01/"
fi

# Chromium's pieces are 02 to 09, the weights' 10 and above, so that each can be made alone.
folder=1
next_folder() { folder=$((folder + 1)); target=$out/$(printf '%02d' "$folder"); rm -rf "$target"; mkdir -p "$target"; }

if [ -n "$chrome" ]; then
  need_browser
  [ -d /usr/lib/chromium ] || die "packing knows Debian's chromium only (/usr/lib/chromium)"
  tree=$(mktemp -d)
  trap 'rm -rf "$tree"' EXIT
  mkdir -p "$tree/browser/lib"
  cp -r /usr/lib/chromium "$tree/browser/chromium"
  # Without what a WebGPU page never uses: other languages, Chromium's own Vulkan loader (the system's is meant).
  rm -f "$tree"/browser/chromium/*.TOC "$tree"/browser/chromium/libVk*
  find "$tree/browser/chromium/locales" -name '*.pak' ! -name 'en-US*' -delete
  for binary in "$tree"/browser/chromium/{chromium,*.so} "$(readlink -f "$(command -v node)")"; do ldd "$binary" 2>/dev/null; done \
    | awk '/=> \//{print $3}' | sort -u | grep -vE '/(libc|libm|libpthread|libdl|librt|ld-linux[^/]*|libresolv)\.so' | xargs -I{} cp -L {} "$tree/browser/lib/"
  # Loaded at run time by name, so ldd does not know them.
  for name in softokn3 nssckbi freebl3 freeblpriv3 nsspem; do
    cp -L /usr/lib/*-linux-gnu/{nss/,}lib$name.so "$tree/browser/lib/" 2>/dev/null || true
  done
  # Without any font a page cannot be laid out, and a bare machine has none.
  mkdir -p "$tree/browser/fonts"
  for family in sans-serif monospace; do cp -L "$(fc-match -f '%{file}' "$family")" "$tree/browser/fonts/"; done
  cp -L "$(readlink -f "$(command -v node)")" "$tree/browser/node"
  mkdir -p "$tree/browser/node_modules"
  cp -r "$NODE_PATH/playwright-core" "$tree/browser/node_modules/"
  say "compressing the browser"
  tar -C "$tree" -c browser | xz -T2 -3 | split -b "$PIECE" -d - "$tree/browser.tar.xz."
  for piece in "$tree"/browser.tar.xz.*; do next_folder; mv "$piece" "$target/"; done
fi

if [ -n "$weights" ]; then
  folder=9
  need_weights smollm2 qwen25coder05
  for name in smollm2 qwen25coder05; do
    split -b "$PIECE" -d "$SEMIF_FILES/$name.gguf" "$out/$name.gguf."
    for piece in "$out/$name".gguf.*; do next_folder; mv "$piece" "$target/"; done
  done
fi
du -sh "$out"/*
