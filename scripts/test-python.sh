#!/usr/bin/env bash
# Quick tests with another Python, in an environment of its own: `scripts/test-python.sh python3.13 [JOBS]`.
#
# The environment is runs/python-VERSION; what passed is kept beside it, so that a run that was cut
# short goes on with `--skip-passed` (CONTRIBUTING.md). More arguments are pytest's.
set -euo pipefail
python=${1:-} jobs=${2:-2}
if ! version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); then
  echo "say which Python: make test-python PYTHON=python3.13" >&2
  exit 2
fi
folder=runs/python-$version
if [ ! -e "$folder/.dev" ] || [ pyproject.toml -nt "$folder/.dev" ]; then
  echo "setting up $folder with the development tools (once)"
  mkdir -p "$folder"
  PYTHON=$python VENV=$folder scripts/venv.sh .dev all dev
fi
export HYPOTHESIS_PROFILE=${HYPOTHESIS_PROFILE:-quick}
"$folder/bin/python" -m pytest -n "$jobs" --dist worksteal -m "not slow and not long and not kube" \
  --write-passed "runs/passed-$version" "${@:3}"
