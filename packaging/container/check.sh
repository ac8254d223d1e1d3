#!/usr/bin/env bash
# Tries an image as a user would: it refuses to serve strangers, speaks with a key, is healthy, and stops in time.
#
#   packaging/container/check.sh IMAGE [ENGINE_OPTION...]    e.g. check.sh omni-actors:cuda --device nvidia.com/gpu=all
#
# By podman, or docker, or $ENGINE.
set -euo pipefail
if [ $# = 0 ] || [ "${1#-}" != "$1" ]; then
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
    exit 2
fi
image=$1
shift
engine=${ENGINE:-$(command -v podman || command -v docker)}
work=$(mktemp -d)
container=
cleanup() {
    [ -z "$container" ] || "$engine" rm -f "$container" >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap cleanup EXIT
fail() {
    printf 'FAILED: %s\n' "$*" >&2
    [ -z "$container" ] || "$engine" logs "$container" >&2 || true
    exit 1
}

# Without a key it does not start, and says what to do.
status=0
"$engine" run --rm "$@" "$image" >"$work/refused" 2>&1 || status=$?
[ "$status" = 2 ] || fail "without a key it ended with $status: $(cat "$work/refused")"
grep -q '/run/secrets/omni-actors-key' "$work/refused" || fail "it does not name the key: $(cat "$work/refused")"

key=$(od -An -tx1 -N24 /dev/urandom | tr -d ' \n')
printf %s "$key" >"$work/key"
chmod 0644 "$work/key"
container=$("$engine" run -d "$@" -p 127.0.0.1::8080 -v "$work/key:/run/secrets/omni-actors-key:ro" "$image")
address=$("$engine" port "$container" 8080 | head -n 1)
[ -n "$address" ] || address=127.0.0.1:8080 # on the host's network, which has no ports to publish
for _ in $(seq 240); do
    ! curl -sf -o "$work/ready" "http://$address/ready" || break
    sleep 0.5
done
[ -s "$work/ready" ] || fail 'it did not become ready'
"$engine" exec "$container" omni-actors-healthcheck || fail 'the health check fails'
[ "$("$engine" exec "$container" id -u)" != 0 ] || fail 'it runs as root'

speak() {
    curl -s -o "$work/speech.wav" -w '%{http_code}' "$@" "http://$address/v1/audio/speech" \
        -H 'content-type: application/json' -d '{"input": "The weather is lovely today.", "seed": 1}'
}
[ "$(speak)" = 401 ] || fail 'it speaks to strangers'
[ "$(speak -H "Authorization: Bearer $key")" = 200 ] || fail "it does not speak: $(head -c 500 "$work/speech.wav")"
[ "$(wc -c <"$work/speech.wav")" -gt 40000 ] || fail 'the speech is too short'
"$engine" exec "$container" test -s /usr/share/doc/omni-actors/THIRD-PARTY-NOTICES || fail 'it carries no notices'
"$engine" stop -t 10 "$container" >/dev/null
[ "$("$engine" wait "$container")" = 0 ] || fail 'it did not stop by itself'
echo "$image refuses strangers, speaks, is healthy, and stops in time"
