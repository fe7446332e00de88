#!/usr/bin/env bash
# Runs on a GPU machine that has nothing but a driver and Python with numpy, with what prepare.sh packed.
#
#   check.sh stage FOLDER    keeps a folder's files for the later steps
#   check.sh native          doctor, the references and timings with the native program
#   check.sh full            a full-size synthetic model, made there: its reference and timings
#   check.sh chrome-full     full-size synthetic models in real Chromium: reference, wall times
#   check.sh flow MODEL...   the page itself, driven by clicks, with models of the models folder: what it showed, times, pictures
#   check.sh mixes MODEL...  other mixes of a model in real Chromium against the native program
#   check.sh chrome [NAME]   the browser tests (those whose name contains NAME) in real Chromium on the GPU
#
# Files stay in $KEEP (/root/semif-keep); figures and logs go to $OUT (./device-out). Exit code 0 only if all held.
set -euo pipefail
cd "$(dirname "$0")/../.."
KEEP=${KEEP:-/root/semif-keep}
OUT=${OUT:-$PWD/device-out}
mkdir -p "$KEEP" "$OUT"

# Vulkan's loader, where the machine lacks it: Debian packages in .gl (libvulkan1 libegl1 libglvnd0 ...).
loaders() {
  if ! ldconfig -p | grep 'libvulkan\.so\.1' >/dev/null; then
    for package in .gl/*.deb; do [ -e "$package" ] && dpkg -x "$package" /; done
    ldconfig
  fi
  local driver=/usr/local/nvidia/share
  if [ -z "${VK_DRIVER_FILES:-}" ] && [ -e $driver/vulkan/icd.d/nvidia_icd.json ]; then
    export VK_DRIVER_FILES=$driver/vulkan/icd.d/nvidia_icd.json
    export __EGL_VENDOR_LIBRARY_FILENAMES=$driver/glvnd/egl_vendor.d/10_nvidia.json
  fi
}

# Joins a file from its pieces once they are all there.
join() {
  local name=$1
  if ! [ -e "$KEEP/models/$name" ] && compgen -G "$KEEP/$name.[0-9]*" >/dev/null; then
    mkdir -p "$KEEP/models"
    cat "$KEEP/$name".[0-9]* >"$KEEP/models/$name"
    rm "$KEEP/$name".[0-9]*
  fi
}

python_parts() {
  mkdir -p "$KEEP/python" "$KEEP/models"
  for wheel in "$KEEP"/*.whl; do [ -e "$wheel" ] && python3 -m zipfile -e "$wheel" "$KEEP/python"; done
  export PYTHONPATH=$KEEP/python PYTHONUNBUFFERED=1
}

prepare_models() {
  python_parts
  join smollm2.gguf
  join qwen25coder05.gguf
  python3 scripts/models.py tiny --dir "$KEEP/models"
  chmod +x "$KEEP/semif"
}

stage() {
  cp "$1"/* "$KEEP/"
  echo "kept: $(ls "$KEEP" | tr '\n' ' ')"
}

native() {
  loaders
  prepare_models
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || true
  "$KEEP/semif" doctor 2>&1 | tee "$OUT/doctor.txt"
  python3 scripts/device/check.py --semif "$KEEP/semif" --models "$KEEP/models" --out "$OUT/native.json" 2>&1 | tee "$OUT/native.txt"
}

full() {
  loaders
  prepare_models
  python3 scripts/device/check.py --semif "$KEEP/semif" --models "$KEEP/models" --full "$KEEP" --out "$OUT/full.json" 2>&1 | tee "$OUT/full.txt"
}

browser() {
  loaders
  prepare_models
  if ! [ -d "$KEEP/browser" ]; then
    cat "$KEEP"/browser.tar.xz.* | tar -C "$KEEP" -xJ
    rm "$KEEP"/browser.tar.xz.*
  fi
  rm -rf "$KEEP/page"
  mkdir -p "$KEEP/page"
  tar -C "$KEEP/page" -xJf "$KEEP/page.tar.xz"
  printf '<?xml version="1.0"?>\n<!DOCTYPE fontconfig SYSTEM "fonts.dtd">\n<fontconfig><dir>%s</dir><dir>/usr/share/fonts</dir><cachedir>/tmp/fonts</cachedir></fontconfig>\n' \
    "$KEEP/browser/fonts" >"$KEEP/fonts.conf"
  # Its libraries are for Chromium alone: a child such as tar must not meet them.
  printf '#!/bin/sh\nexport LD_LIBRARY_PATH=%s HOME=/tmp FONTCONFIG_FILE=%s\nexec %s "$@"\n' \
    "$KEEP/browser/lib" "$KEEP/fonts.conf" "$KEEP/browser/chromium/chromium" >"$KEEP/chromium"
  chmod +x "$KEEP/chromium"
  export CHROMIUM=$KEEP/chromium NODE_PATH=$KEEP/browser/node_modules SEMIF_TEST_MODELS=$KEEP/models SEMIF_BIN=$KEEP/semif SEMIF_SHOTS=$OUT
  # A GPU has time for every length of the references, both real prompts and every path.
  export SEMIF_LONGEST=${SEMIF_LONGEST:-400} SEMIF_BITS=full
  export SEMIF_CHROMIUM_FLAGS="--enable-unsafe-webgpu --enable-features=Vulkan,VulkanFromANGLE,DefaultANGLEVulkan --use-angle=vulkan --ignore-gpu-blocklist --disable-vulkan-surface --enable-webgpu-developer-features"
  node=$KEEP/browser/node
  "$node" --version >/dev/null 2>&1 || node="env LD_LIBRARY_PATH=$KEEP/browser/lib $node"
}

flow() {
  browser
  local model
  for model in "$@"; do
    mkdir -p "$OUT/$model"
    $node scripts/device/flow.mjs "$KEEP/page" "$KEEP/models/$model.gguf" "$OUT/$model" 2>&1 | tee "$OUT/flow-$model.txt"
  done
}

mixes() {
  browser
  $node scripts/device/chrome-mixes.mjs "$KEEP/page" "$KEEP/semif" "${@/#/$KEEP/models/}" 2>&1 | tee "$OUT/mixes.txt"
}

chrome() {
  browser
  $node tests/browser/run.mjs "$KEEP/page" "$@" 2>&1 | tee "$OUT/chrome.txt"
}

chrome-full() {
  browser
  local name
  for name in qwen3 qwen35 minicpm5; do
    [ -e "$KEEP/full-$name.json" ] || continue
    local file=$KEEP/models/$name-full-real.gguf
    [ -e "$file" ] || python3 tests/tools/synth_gguf.py "$name" full "$file" --mix real --seed 1 --vocab-src "$KEEP/vocab_qwen2.gguf" &
  done
  wait
  $node scripts/device/chrome-full.mjs "$KEEP/page" "$KEEP/models" "$KEEP" 2>&1 | tee "$OUT/chrome-full.txt"
}

case ${1:-} in
  stage | native | full | flow | mixes | chrome | chrome-full) "$@" ;;
  *) sed -n '2,12s/^# \{0,1\}//p' "$0"; [ -z "${1:-}" ] || [ "$1" = --help ] || exit 2 ;;
esac
