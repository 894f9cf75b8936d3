#!/usr/bin/env bash
# Runs the Python tests in a virtual environment, build/python-venv, which it makes. Package indexes
# are needed the first time only.
#
#   tests/python/run.sh [--prepare | --wheel] [PYTEST OPTION...]
#
# --prepare  makes the environment and stops
# --wheel    tests the wheel that pip builds and installs, instead of the modules that CMake adds to
#            build/release
#
# NORMGRAD_LONG=1 in the environment: 50 repetitions of the tests in which processes fail, not 3.
#
# Exit status 77, with a loud line: the packages that everything here needs cannot be had.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
venv=$root/build/python-venv
python=$venv/bin/python
mode=modules
case ${1:-} in
  --prepare | --wheel) mode=${1#--} && shift ;;
esac

skip() { printf '\n*** SKIPPED: %s ***\n\n' "$1" >&2; }

# have PACKAGE...: installs what is missing.
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
[[ $mode != prepare ]] || exit 0

# logged COMMAND...: quiet unless it fails.
log=$root/build/python.log
logged() {
  "$@" >"$log" 2>&1 || { tail -n 60 "$log" >&2 && return 1; }
}

if [[ $mode == wheel ]]; then
  logged "$python" -m pip wheel . --no-build-isolation --no-deps --disable-pip-version-check \
    -w build/python-wheel
  logged "$python" -m pip install --disable-pip-version-check --force-reinstall --no-deps \
    build/python-wheel/normgrad-*.whl
else
  logged cmake --preset release -DNORMGRAD_BUILD_PYTHON=ON -DPython_EXECUTABLE="$python"
  logged cmake --build --preset release --target python_modules
  rm -rf build/python-package
  logged cmake --install build/release --component python --prefix build/python-package
  export PYTHONPATH=$root/build/python-package
fi
cd tests/python  # not the root: the package under test is the installed one
exec "$python" -m pytest -q -p no:cacheprovider "$@"
