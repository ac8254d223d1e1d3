#!/usr/bin/env bash
# Unpacks an archive of scripts/tarball.sh and tries what it brings: the binary, its symbols, its config, its systemd
# unit.
#
#   packaging/check-tarball.sh FILE.tar.gz
set -euo pipefail
if [ $# != 1 ] || [ ! -f "$1" ]; then
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
server=
cleanup() {
    [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
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

# A panic on purpose: its backtrace names functions, which it finds in the file of symbols.
printf '[[faults]]\nstage = "talker"\npoint = "build"\nkind = "panic"\n' >"$work/panic.toml"
RUST_BACKTRACE=1 "$folder/bin/omni-actors" run --listen 127.0.0.1:0 --faults "$work/panic.toml" \
    >/dev/null 2>"$work/panic.log" &
server=$!
for _ in $(seq 240); do # bounded: 60 s
    ! grep -q 'stage running stage=talker generation=2' "$work/panic.log" || break
    sleep 0.25
done
kill -TERM "$server"
wait "$server" || fail "the server ended with $?: $(tail -n 20 "$work/panic.log")"
server=
grep -q ': omni_stage::model_runner::' "$work/panic.log" ||
    fail "the backtrace of a panic has no names: $(tail -n 40 "$work/panic.log")"

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
echo "$(basename "$1") unpacks, speaks, and carries its symbols, config, unit and licences"
