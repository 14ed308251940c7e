#!/bin/sh
# Install packages into a virtual environment, with the versions that constraints/PINS.txt names:
#
#   constraints/install.sh VENV PINS ARGUMENTS_OF_PIP_INSTALL...
#
# torch comes first, by pip. On Linux, PyPI's torch brings gigabytes of CUDA; a machine without a GPU takes the CPU build from
# PyTorch's own index instead, if that answers within seconds. If the pinned torch is already installed, it stays.
# Everything else is installed by uv where there is one, which is faster, or by pip.
set -eu
python=$1/bin/python pins=constraints/$2.txt
shift 2
cpu_wheels=https://download.pytorch.org/whl/cpu
torch=$(grep '^torch==' "$pins")

# as with uv, modules are compiled when they are first imported: most never are
pip() { "$python" -m pip install --quiet --no-compile --disable-pip-version-check "$@"; }

torch_is_installed() { "$python" -m pip list --format freeze 2>/dev/null | grep -qE "^$torch(\+|$)"; }

needs_no_cuda() { [ "$(uname)" = Linux ] && ! nvidia-smi >/dev/null 2>&1; }

cpu_wheels_answer() {
    timeout 10 "$python" -c "from urllib.request import urlopen; urlopen('$cpu_wheels/torch/', timeout=5)" 2>/dev/null
}

if ! torch_is_installed; then
    if needs_no_cuda && cpu_wheels_answer; then
        echo "Installing $torch for CPUs from $cpu_wheels"
        pip --no-deps --index-url "$cpu_wheels" "$torch"
    else
        needs_no_cuda && echo "$cpu_wheels does not answer; this torch may bring gigabytes of CUDA"
        echo "Installing $torch"
        pip --no-deps "$torch"
    fi
fi
if command -v uv >/dev/null; then
    uv pip install --quiet --python "$python" --constraint "$pins" "$@"
else
    pip --constraint "$pins" "$@"
fi
