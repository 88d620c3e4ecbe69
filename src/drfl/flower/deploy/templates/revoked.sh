# 'drfl deploy revoke' and 'rotate' move keys to keys/revoked. No key in that folder may be used again.
was_revoked() { # whether a key of the site with this name was revoked
    for old in "keys/revoked/$1"-????????T??????.*.pub; do
        if [ -e "$old" ]; then
            return 0
        fi
    done
    return 1
}
fingerprint() { # of a public key; it does not depend on the format or the comment of the file
    ssh-keygen -l -E sha256 -f "$1" 2>/dev/null | head -n 1 | cut -d ' ' -f 2
}
is_revoked() { # whether this public key is in keys/revoked; an unreadable key counts as revoked
    for old in keys/revoked/*.pub; do
        if [ -e "$old" ] && case $(fingerprint "$1") in '' | "$(fingerprint "$old")") true ;; *) false ;; esac; then
            return 0
        fi
    done
    return 1
}
