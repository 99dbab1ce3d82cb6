#!/usr/bin/env bash
# The health check inside an allocation, for `gpt1-ds slurm check`: bash check.sh FOLDER
# shellcheck source=launch/env.sh
. "$(dirname "$0")/env.sh"
check "$1"
