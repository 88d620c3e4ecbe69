"""A stand-in for Ray in this process: calls run at once, and arguments are pickled."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import cloudpickle


class RayError(Exception):
    """Ray's base error."""


class RayTaskError(RayError):
    """Ray's error for an exception in a call."""

    def __init__(self, cause):
        super().__init__(str(cause))
        self.cause = cause


class Ref:
    """A stand-in for an object reference."""

    def __init__(self, kept=None, error=None):
        self.kept, self.error = kept, error

    def __reduce__(self):
        return _known, (id(self),)

    def future(self):
        found = Future()
        found.set_result(None)
        return found


_REFS = {}


def _known(number):
    return _REFS[number]


class FakeRay:
    """A stand-in for the module. Call number ``lost`` fails as if its worker were lost repeatedly."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, cpus=3, lost=None):
        self.cpus, self.lost, self.puts, self.calls = cpus, lost, [], []

    def is_initialized(self):
        return True

    def cluster_resources(self):
        return {"CPU": float(self.cpus)}

    def put(self, what):
        ref = Ref(cloudpickle.dumps(what))
        _REFS[id(ref)] = ref
        self.puts.append(what)
        return ref

    def get(self, refs):
        if isinstance(refs, list):
            return [self.get(ref) for ref in refs]
        if refs.error is not None:
            raise refs.error
        return cloudpickle.loads(refs.kept)

    def wait(self, refs, timeout):
        return refs[:1], refs[1:]

    def cancel(self, ref, *, force):
        pass

    def remote(self, **options):
        def of(thing):
            if isinstance(thing, type):
                return SimpleNamespace(remote=lambda *own: _Actor(self, thing(*_sent(own))))
            return SimpleNamespace(remote=lambda *given: self.called(thing, given))

        return of

    def called(self, function, given):
        """Make one call, after fetching arguments that are references."""
        self.calls.append((function.__name__, given))
        if len(self.calls) == self.lost:
            return Ref(error=RayError("lost"))
        try:
            return self.put(function(*(self.get(one) if isinstance(one, Ref) else _sent(one) for one in given)))
        except Exception as error:
            return Ref(error=RayTaskError(error))


def _sent(what):
    return cloudpickle.loads(cloudpickle.dumps(what))


class _Actor:
    def __init__(self, ray, inside):
        self._ray, self._inside = ray, inside

    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda *given: self._ray.called(getattr(self._inside, name), given))
