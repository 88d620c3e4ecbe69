"""Run drfl's algorithms on a real federation over Flower's message API: see ``docs/deploy.md``.

:mod:`drfl.flower.deployed_federation` implements :class:`drfl.federation.federation.Federation` on top of a Flower
``Grid``, and :mod:`drfl.flower.client_app` is the program at a site. A Flower app can name both ends directly as
``drfl.flower.server_app:app`` and ``drfl.flower.client_app:app``. Only this package needs the extra ``drfl[flower]``.
"""
