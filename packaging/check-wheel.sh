#!/usr/bin/env bash
# Installs a wheel into an empty environment, as a user would, and lets it speak.
#
#   packaging/check-wheel.sh FILE.whl
set -euo pipefail
if [ $# != 1 ] || [ ! -f "$1" ]; then
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    printf 'FAILED: %s\n' "$*" >&2
    exit 1
}

python3 -m venv "$work/venv"
# No index: the wheel must need nothing else.
"$work/venv/bin/pip" install -q --disable-pip-version-check --no-index "$1"
"$here/check-binary.sh" "$work/venv/bin/omni-actors"
licenses=$(ls -d "$work"/venv/lib/python*/site-packages/omni_actors-*.dist-info/licenses)
for file in LICENSE THIRD-PARTY-NOTICES; do
    [ -s "$licenses/$file" ] || fail "the wheel has no $file"
done
"$work/venv/bin/pip" uninstall -q -y omni-actors
[ ! -e "$work/venv/bin/omni-actors" ] || fail 'pip did not remove the binary'
echo "$(basename "$1") installs, speaks, carries its licences, and can be removed"
