#!/usr/bin/env bash
# unpack.sh PIECE DIR
set -euo pipefail
mkdir -p "$2" && tar -xJf "$1" -C "$2"
