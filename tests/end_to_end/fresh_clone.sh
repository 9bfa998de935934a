#!/usr/bin/env bash
# The README's first command on a fresh clone: set-up, then the demo within two minutes, and what it leaves.
#
#   tests/end_to_end/fresh_clone.sh [REPOSITORY]      (default: the one this script lies in)
set -euo pipefail

repository=${1:-$(git -C "$(dirname "$0")" rev-parse --show-toplevel)}
seconds_max=120
place=$(mktemp -d)
clone=$place/clone
said=$place/demo.txt

clean_up() {
    if [ -x "$clone/.venv/bin/orchestrator" ]; then
        ORCHESTRATOR_HOME=$clone/.demo "$clone/.venv/bin/orchestrator" down || true
    fi
    rm -rf "$place"
}
trap clean_up EXIT

fail() {
    echo "FAILED: $1" >&2
    exit 1
}

git clone --quiet "$repository" "$clone"
cd "$clone"
make setup
before=$SECONDS
make demo | tee "$said"
took=$((SECONDS - before))

sessions=$(sed -nE 's/.* done in .*, in ([0-9]+) sessions$/\1/p' "$said")
[ "${sessions:-0}" -ge 3 ] || fail "it crossed fewer than two walls (${sessions:-no} sessions)"
grep -Eq '^checkpoint +step [0-9,]+, .*verified$' "$said" || fail "it names no verified checkpoint"
folder=$(sed -nE 's/^folder +(.+)$/\1/p' "$said")
[ -s "$folder/model.safetensors" ] || fail "there is no model in the folder it names ($folder)"
grep -q 'kill -9' "$said" || fail "it did not say that it kills its controller"
grep -Eq '^crash +the controller was killed once' "$said" || fail "its controller was not killed once"
grep -Eq '^next +' "$said" || fail "it does not say what to try next"
[ "$took" -le "$seconds_max" ] || fail "it took $took s, more than $seconds_max s"
echo "a fresh clone's demo: $sessions sessions, $took s, its checkpoint in $folder"
