#!/bin/sh
# This deployment is insecure: it has no keys and no certificates.
echo "nothing to make: this deployment is insecure"
