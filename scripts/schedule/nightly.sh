#!/bin/sh
# One night for cron: prints what `nox -s nightly` has to tell, nothing otherwise, and ends as it does.
# Arguments go to the night: pairs, --upstream SOURCE, --reruns N, --hook COMMAND.
cd "$(dirname "$0")/../.." && mkdir -p reports || exit
export PIP_QUIET=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# On entering the environment that noxfile.py asks for, nox says so on standard error, every time. A mail a night for
# that would hide the one that matters; when a night ends badly, what is there may be the reason.
errors=reports/nightly.err
.venv/bin/nox -s nightly -- "$@" 2>"$errors" && exit
status=$?
sed '/^nox > \(uv binary not found\|Creating virtual environment\|Reusing existing virtual environment\)/d' "$errors"
exit "$status"
