#!/usr/bin/env bash
# Builds the wheel, installs it into a virtual environment (build/python-venv), and runs the Python
# tests there, where nothing is built. Package managers' servers are needed the first time only.
#
#   tests/python/run.sh [PYTEST OPTION...]
#
# NORMGRAD_CUDA=ON|OFF chooses the CUDA backend; by default it is built if there is a GPU.
# Exit status 77, with a loud line: the packages that everything here needs cannot be had.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
venv=$root/build/python-venv
python=$venv/bin/python
wheels=$root/build/python-wheel

skip() { printf '\n*** SKIPPED: %s ***\n\n' "$1" >&2; }

# have PACKAGE...: installs what is missing; no package is looked for twice.
have() {
  "$python" -m pip install --quiet --disable-pip-version-check "$@" >"$venv/pip.log" 2>&1
}

if ! [[ -x $python ]] && ! python3 -m venv "$venv"; then
  skip "the Python tests: python3 -m venv does not work here (Debian: python3-venv)"
  exit 77
fi
if ! have scikit-build-core nanobind numpy pytest hypothesis ml_dtypes; then
  tail -n 3 "$venv/pip.log" >&2
  skip "the Python tests: scikit-build-core, nanobind, numpy, pytest, hypothesis cannot be had"
  exit 77
fi
have torch==2.13.0 || skip "the tests of normgrad.torch: PyTorch 2.13.0 cannot be had"
have jax || skip "the tests of normgrad.jax: JAX cannot be had"

cuda=${NORMGRAD_CUDA:-$([[ -e /dev/nvidiactl ]] && echo AUTO || echo OFF)}
mkdir -p "$wheels"
rm -f "$wheels"/*.whl
if ! "$python" -m pip wheel . --no-build-isolation --no-deps --disable-pip-version-check \
  --config-settings=cmake.define.NORMGRAD_CUDA="$cuda" -w "$wheels" >"$wheels/log" 2>&1; then
  tail -n 60 "$wheels/log" >&2
  exit 1
fi
"$python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps \
  "$wheels"/normgrad-*.whl
cd tests/python  # not the root: the package under test is the installed one
exec "$python" -m pytest -q -p no:cacheprovider "$@"
