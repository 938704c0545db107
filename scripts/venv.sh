#!/usr/bin/env bash
# Make .venv (or $VENV) and install wattherd into it: `scripts/venv.sh STAMP EXTRAS [GROUP]`.
#
# Works on a bare Debian 12: where python3-venv (ensurepip) is missing, the environment is made
# without pip and filled from outside.
set -euo pipefail
stamp=$1 extras=$2 group=${3:-}
python=${PYTHON:-python3} venv=${VENV:-.venv}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "wattherd needs Python 3.11 or later; set PYTHON=/path/to/python3.11" >&2
  exit 2
fi
if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  if ! "$python" -m venv --clear "$venv" >/dev/null 2>&1; then
    "$python" -m venv --clear --without-pip "$venv"
    "$python" -m pip --python "$venv/bin/python" install --quiet pip
  fi
fi
# Dependency groups (PEP 735) need pip 25.1.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
# A module is compiled by whoever imports it first: all 13,000 take half a minute, most for nothing.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
  ${group:+--group "$group"} --editable ".[$extras]" --editable ./sdk
touch "$venv/$stamp"
