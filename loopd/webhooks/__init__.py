"""Webhooks: events as signed HTTP requests, in order, until the sink takes them."""

from loopd.webhooks.delivery import Deliveries

__all__ = ["Deliveries"]
