#!/bin/sh
# Builds every proof from clean, refuses admitted ones, and compares the axioms under every
# theorem with allowed_axioms.txt. Needs coqc (see README.md).
set -eu
cd "$(dirname "$0")"

command -v coqc >/dev/null || {
    echo "coqc not found; on Debian bookworm:" >&2
    echo "apt-get install -y --no-install-recommends coq libcoq-mathcomp-ssreflect make" >&2
    exit 2
}

if grep -nwE 'Admitted|admit|Axioms?|Parameters?|Conjecture|Abort|give_up|bypass_check|Unset Guard Checking|type_in_type' \
    ./*.v; then
    echo "unproved or assumed statements above" >&2
    exit 1
fi

make clean
make

printed=$(mktemp)
trap 'rm -f "$printed"' EXIT
coqc -w -notation-overridden -Q . OGRPO Assumptions.v >"$printed"

theorems=$(cat ./*.v | grep -cE '^Theorem ')
requested=$(grep -cE '^  \(@[A-Z][A-Za-z]*\.[a-z]' Assumptions.v)
if [ "$theorems" -ne "$requested" ] || ! grep -qE '^(Axioms:|Closed under the global context)' "$printed"; then
    echo "$theorems theorems, $requested in Assumptions.v; python statements.py --write lists them all" >&2
    exit 1
fi

unexpected=$(sed -nE 's/^([A-Za-z_][A-Za-z0-9_.]*)( :.*)?$/\1/p' "$printed" | sort -u |
    grep -vxFf allowed_axioms.txt || true)
if [ -n "$unexpected" ]; then
    echo "axioms outside allowed_axioms.txt:" "$unexpected" >&2
    exit 1
fi
echo "$theorems theorems, no proof admitted, no axiom outside allowed_axioms.txt"
