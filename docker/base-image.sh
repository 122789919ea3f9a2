#!/usr/bin/env bash
# Makes a base image for docker/Dockerfile out of Debian packages, for where there is no image registry:
#   docker/base-image.sh NAME [SUITE]      then: make image BASE_IMAGE=NAME
# Needs root, debootstrap and a Docker engine. The image trusts the certificate authorities that this machine trusts.
set -euo pipefail

name=${1:?usage: docker/base-image.sh NAME [SUITE]}
suite=${2:-bookworm}
mirror=${DEBIAN_MIRROR:-} # empty: the one that debootstrap knows
docker=${DOCKER:-docker}

folder=$(mktemp -d)
trap 'rm -rf --one-file-system "$folder"' EXIT

debootstrap --variant=minbase --include=python3,ca-certificates "$suite" "$folder" ${mirror:+"$mirror"}
if [ -s /etc/ssl/certs/ca-certificates.crt ]; then
    cp /etc/ssl/certs/ca-certificates.crt "$folder/etc/ssl/certs/ca-certificates.crt"
fi
# What only installing and reading about packages needs.
rm -rf "$folder"/var/cache/apt/* "$folder"/var/lib/apt/lists/* "$folder"/var/log/* \
    "$folder"/usr/share/{doc,man,info,locale}/*
tar -C "$folder" --numeric-owner -c . | $docker import --change 'CMD ["bash"]' - "$name"
