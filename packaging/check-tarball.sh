#!/usr/bin/env bash
# Unpacks an archive of scripts/tarball.sh and tries what it brings: the binary, its config, its systemd unit.
#
#   packaging/check-tarball.sh FILE.tar.gz
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

# Whatever it says is wrong, an exit code of 0 or not.
verify() {
    local said status=0
    said=$(systemd-analyze verify "$unit" 2>&1) || status=$?
    [ "$status:$said" = 0: ] || fail "systemd-analyze verify: $said"
}

tar -C "$work" -xzf "$1"
folder=$(echo "$work"/*)
[ -d "$folder" ] || fail 'the archive is not one folder'
"$here/check-binary.sh" "$folder/bin/omni-actors"
env -i "$folder/bin/omni-actors" check "$folder/config.toml" >/dev/null || fail 'the config is refused'
for file in LICENSE THIRD-PARTY-NOTICES README.md; do
    [ -s "$folder/$file" ] || fail "the archive has no $file"
done

# The unit, with the binary where it would be: systemd looks whether that can be run.
if command -v systemd-analyze >/dev/null; then
    unit=$work/verify/omni-actors.service
    mkdir -p "$unit.d"
    sed "s|/usr/local/bin/omni-actors|$folder/bin/omni-actors|" "$folder/systemd/omni-actors.service" >"$unit"
    verify
    cp "$folder/systemd/gpu.conf" "$unit.d/"
    verify
    systemd-analyze security --offline=true --threshold=20 "$folder/systemd/omni-actors.service" >"$work/security" ||
        fail "the unit is exposed: $(tail -n 1 "$work/security")"
    tail -n 1 "$work/security"
else
    echo 'NOT CHECKED: the systemd unit, for there is no systemd-analyze here'
fi
echo "$(basename "$1") unpacks, speaks, and carries its config, unit and licences"
