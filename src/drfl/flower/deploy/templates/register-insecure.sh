#!/bin/sh
# This deployment is insecure: the SuperLink accepts every site that connects, so there is nothing to register.
echo "nothing to register: this deployment is insecure"
