# The names of the sites are those in server.toml.
for python in "${DRFL_BIN:-}/python3" @BIN@/python3 python3; do
    if command -v "$python" >/dev/null; then
        break
    fi
done
sites=$("$python" -I -c '
import re, sys, tomllib
try:
    with open("server.toml", encoding="utf-8-sig") as file:
        names = [table["name"] for table in tomllib.loads(file.read())["sites"]]
    odd = [name for name in names if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9_-]*", name)]
except (OSError, ValueError, KeyError, TypeError) as error:
    sys.exit(f"cannot read the names of the sites in server.toml ({type(error).__name__}: {error})")
if odd:
    sys.exit(f"server.toml: the name of a site has only letters, digits, - and _, got {odd[0]!r}")
print(*names)
') || exit 1
