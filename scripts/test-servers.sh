#!/usr/bin/env bash
# Install the servers that tests talk to: Debian packages, and two from PyPI. Tests start and stop them on
# loopback themselves; nothing is left running.
set -euo pipefail
[ -x .venv/bin/sushy-static ] || .venv/bin/python -m pip install --quiet 'sushy-tools>=2.2'
.venv/bin/python -c 'import pyghmi' 2>/dev/null || .venv/bin/python -m pip install --quiet 'pyghmi>=1.6'
.venv/bin/python -c 'import playwright' 2>/dev/null || .venv/bin/python -m pip install --quiet 'playwright>=1.50'
packages=(snmpd nut-server prometheus prometheus-alertmanager openipmi ipmitool gcc libc6-dev postgresql chromium)
missing=()
for package in "${packages[@]}"; do
  dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "all test servers are installed"
  exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
  echo "install as root: apt-get install ${missing[*]}" >&2
  exit 2
fi
# Packages must not start their own daemons: tests bring their own configuration.
if [ ! -e /usr/sbin/policy-rc.d ]; then
  printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
  chmod +x /usr/sbin/policy-rc.d
  trap 'rm -f /usr/sbin/policy-rc.d' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
echo "installed ${missing[*]}"
