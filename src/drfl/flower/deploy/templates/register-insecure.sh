#!/bin/sh
# This deployment is insecure: any site that connects is let in, and there is nothing to register.
echo "nothing to register: the deployment is insecure"
