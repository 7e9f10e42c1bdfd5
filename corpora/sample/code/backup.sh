#!/usr/bin/env bash
# Copies a folder into a dated archive and keeps the newest seven.
set -euo pipefail

source_dir=${1:?usage: backup.sh SOURCE TARGET}
target_dir=${2:?usage: backup.sh SOURCE TARGET}
mkdir -p "$target_dir"

archive="$target_dir/backup-$(date +%Y-%m-%d).tar.gz"
tar --create --gzip --file "$archive.partial" --directory "$source_dir" .
mv "$archive.partial" "$archive"
echo "wrote $archive ($(du -h "$archive" | cut -f1))"

ls -1t "$target_dir"/backup-*.tar.gz | tail -n +8 | while read -r old; do
    rm -- "$old"
    echo "removed $old"
done
