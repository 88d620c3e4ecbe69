"""The same algorithms on a real federation, over Flower's message API: ``docs/deploy.md``.

``drfl.flower.federation`` is a :class:`drfl.federation.federation.Federation` behind a Flower ``Grid``,
``drfl.flower.client_app`` what runs at a site. Both ends, ready to be named in a Flower app:
``drfl.flower.server_app:app`` and ``drfl.flower.client_app:app``. They need the extra ``drfl[flower]``; nothing else in
drfl does.
"""
