#!/usr/bin/env bash
# Build the control plane that tests start on loopback (etcd, Kubernetes, KWOK), kubectl and helm from
# their Go modules, once for each set of versions, into a cache outside the tree.
#
#   scripts/kube-binaries.sh          build what is missing; the folder goes to stdout
#   scripts/kube-binaries.sh --where  only say where that folder would be
set -euo pipefail
cd "$(dirname "$0")/.."
modules=tests/kube/binaries
pinned=("$modules"/plane/go.{mod,sum} "$modules"/helm/go.{mod,sum})
digest=$(cat "${pinned[@]}" | sha256sum | cut -c1-12)
target=${XDG_CACHE_HOME:-$HOME/.cache}/wattherd/kube/$digest

if [ "${1:-}" = --where ] || [ -x "$target/helm" ]; then
  echo "$target"
  exit 0
fi
if ! command -v go >/dev/null; then
  echo "no Go to build the control plane with: install Go 1.26, or point WATTHERD_KUBE_BIN at a folder" >&2
  exit 2
fi

export CGO_ENABLED=0 GOFLAGS=-mod=readonly
mkdir -p "$(dirname "$target")"
made=$(mktemp -d "$target.XXXXXX")
trap 'rm -rf "$made"' EXIT

version() { (cd "$modules/$1" && go list -m -f '{{.Version}}' "$2"); }
build() { # module, name, package, flags of the linker
  echo "building $2 (once)" >&2
  (cd "$modules/$1" && nice -n 5 go build -p "${JOBS:-2}" -trimpath -buildvcs=false -ldflags "-s -w ${4:-}" -o "$made/$2" "$3")
}

for module in plane helm; do
  (cd "$modules/$module" && go mod download) || {
    echo "the modules of $modules/$module cannot be downloaded; no control plane is built" >&2
    exit 3
  }
done
kubernetes=$(version plane k8s.io/kubernetes)
IFS=. read -r major minor _ <<<"${kubernetes#v}"
stamp=
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  stamp+=" -X $package.gitVersion=$kubernetes -X $package.gitMajor=$major -X $package.gitMinor=$minor"
  stamp+=" -X $package.gitTreeState=clean"
done
for name in kube-apiserver kube-controller-manager kube-scheduler kubectl; do
  build plane "$name" "k8s.io/kubernetes/cmd/$name" "$stamp"
done
build plane etcd go.etcd.io/etcd/server/v3
build plane kwok sigs.k8s.io/kwok/cmd/kwok \
  "-X sigs.k8s.io/kwok/pkg/consts.Version=$(version plane sigs.k8s.io/kwok)"
build helm helm helm.sh/helm/v4/cmd/helm \
  "-X helm.sh/helm/v4/internal/version.version=$(version helm helm.sh/helm/v4)"
mv -T "$made" "$target" 2>/dev/null || [ -x "$target/helm" ] # another build may have been faster
echo "$target"
