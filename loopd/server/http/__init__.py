"""HTTP: commands, resources, events and the page, beside `/metrics`, `/livez` and `/readyz`.

Everything goes through the dispatcher and the fan-out of the control socket; here are only its HTTP clothes.
Without a token in force, or with no daemon behind it, nothing but the health pages and metrics is served.
"""

from loopd.server.http.app import METRICS_TYPE, make_app
from loopd.server.http.problems import problem
from loopd.server.http.serving import Tls, serve_http

__all__ = ["METRICS_TYPE", "Tls", "make_app", "problem", "serve_http"]
