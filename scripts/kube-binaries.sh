#!/usr/bin/env bash
# Build the control plane that tests start on loopback (etcd, Kubernetes, KWOK), kubectl and helm, and
# Kueue in a folder of its own, from their Go modules, once for each set of versions, into a cache
# outside the tree.
#
#   scripts/kube-binaries.sh                build what is missing; the plane's folder goes to stdout
#   scripts/kube-binaries.sh --where        only say where that folder would be
#   scripts/kube-binaries.sh --where-kueue  the same of Kueue's
set -euo pipefail
cd "$(dirname "$0")/.."
modules=tests/kube/binaries
cache=${XDG_CACHE_HOME:-$HOME/.cache}/wattherd/kube
digest() { cat "${@/#/$modules/}" | sha256sum | cut -c1-12; }
target=$cache/$(digest plane/go.{mod,sum} helm/go.{mod,sum})
kueue=$cache/kueue-$(digest kueue/go.{mod,sum})

case "${1:-}" in
--where) echo "$target" && exit ;;
--where-kueue) echo "$kueue" && exit ;;
esac
if [ -x "$target/helm" ] && [ -x "$kueue/kueue" ]; then
  echo "$target"
  exit 0
fi
if ! command -v go >/dev/null; then
  echo "no Go to build the control plane with: install Go 1.26, or point WATTHERD_KUBE_BIN at a folder" >&2
  exit 2
fi

export CGO_ENABLED=0 GOFLAGS=-mod=readonly
mkdir -p "$cache"
made=
trap 'rm -rf "$made"' EXIT
begin() { made=$(mktemp -d "$1.XXXXXX"); }
keep() { # folder, program: another build may have been faster
  mv -T "$made" "$1" 2>/dev/null || [ -x "$1/$2" ]
}
fetch() { # module
  (cd "$modules/$1" && go mod download) || {
    echo "the modules of $modules/$1 cannot be downloaded; no control plane is built" >&2
    exit 3
  }
}

version() { (cd "$modules/$1" && go list -m -f '{{.Version}}' "$2"); }
build() { # module, name, package, flags of the linker
  echo "building $2 (once)" >&2
  (cd "$modules/$1" && nice -n 5 go build -p "${JOBS:-2}" -trimpath -buildvcs=false -ldflags "-s -w ${4:-}" -o "$made/$2" "$3")
}

build_plane() {
  begin "$target"
  fetch plane
  fetch helm
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
  keep "$target" helm
}

build_kueue() { # with the definitions of its objects
  begin "$kueue"
  fetch kueue
  build kueue kueue sigs.k8s.io/kueue/cmd/kueue
  bases=$(cd "$modules/kueue" && go list -m -f '{{.Dir}}' sigs.k8s.io/kueue)/config/components/crd/bases
  mkdir "$made/crds"
  cp "$bases"/*.yaml "$made/crds/"
  chmod -R u+w "$made/crds"
  keep "$kueue" kueue
}

[ -x "$target/helm" ] || build_plane
[ -x "$kueue/kueue" ] || build_kueue
echo "$target"
