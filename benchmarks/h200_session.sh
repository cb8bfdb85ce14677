#!/bin/bash
# Measure on one H200, in about ten minutes, what times under nsys, a limit of memory and a cold start are:
#   bash benchmarks/h200_session.sh OUT
# Each part keeps to its budget, and what does not fit is left out. OUT gets the rows and what was printed.
out=${1:?the folder for results}
work=$(mktemp -d)
began=$SECONDS
trap 'cp "$work"/*.jsonl "$out"' EXIT
{
    python3 benchmarks/record_reports.py "$work" n --budget 175
    for compile in "" --compile "--compile reduce-overhead"; do
        timeout 60 python3 benchmarks/cold_start.py $compile --json "$work/cold_start.jsonl"
    done
    python3 benchmarks/record_reports.py "$work" m --budget 30
    python3 benchmarks/record_reports.py "$work" w --budget $((560 - SECONDS + began))
    cp "$work"/*.jsonl "$out"
    python3 benchmarks/record_reports.py "$work" n m w --pages
    sed -n '/^### Measured/,/^###  *Compared/p' "$work/n.md"
    sed -n '/^### Measured/,$p' "$work/m.md"
    grep -e '| here' -e '| source' "$work/w.md"
} 2>&1 | tee "$out/session.log"
