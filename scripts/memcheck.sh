#!/usr/bin/env bash
# Runs the tests whose operands end exactly where their slices end under valgrind's memcheck: a read
# or write past a slice, or a result of unset memory, fails. Valgrind knows no AVX-512, so this covers
# the portable and AVX2 levels. Takes a few minutes; scripts/test.sh does not call it.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v valgrind >/dev/null || { echo "valgrind is not installed" >&2; exit 2; }

tests=(--test by_hand --test cases --test hostile --test properties --test accumulation)
cargo test --locked --quiet -p sgemm-bi-tests "${tests[@]}" --no-run
cargo test --locked --no-run -p sgemm-bi-tests "${tests[@]}" 2>&1 |
    sed -n 's/.*Executable.*(\(.*\))/\1/p' |
    while read -r program; do
        echo "== $program"
        valgrind --quiet --error-exitcode=9 "$program" --test-threads 1
    done
