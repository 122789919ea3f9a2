"""Delegation tokens are made, renewed, set to expire and removed at random, as time passes, against a naive model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from semel.broker.config.node_config import NodeConfig
from semel.broker.handlers import delegation_tokens as handler
from semel.broker.metadata.chain import Position
from semel.broker.metadata.changes import DELEGATION_TOKENS_VERSION, MetadataVersionRaised
from semel.broker.metadata.image import EMPTY_IMAGE
from semel.broker.users.delegation import DelegationTokens, TokenSecret
from semel.protocol.delegation_tokens import password_of
from semel.protocol.errors import ErrorCode, SemelError

EXPIRY_MS, LONGEST_MS = 100, 350
PEOPLE = ("User:alice", "User:bob", "User:carl")
PERIODS = st.integers(-3, 500)


@dataclass
class Model:
    """One token, as KIP-48 describes it."""

    owner: str
    renewers: tuple[str, ...]
    last_ms: int
    expiry_ms: int

    def may_change(self, who: str) -> bool:
        return who == self.owner or who in self.renewers


class Clock:
    def __init__(self) -> None:
        self.at = 1_000_000

    def now_ms(self) -> int:
        return self.at

    def monotonic(self) -> float:
        return self.at / 1000


class Metadata:
    """Decides and applies at once."""

    def __init__(self) -> None:
        self.image = EMPTY_IMAGE
        self._apply(MetadataVersionRaised(DELEGATION_TOKENS_VERSION))

    def _apply(self, change: Any) -> None:
        self.image = self.image.apply(change, Position(self.image.sequence + 1, "d"))

    async def change(self, decide: Callable[[Any], Any], **_: Any) -> Any:
        for each in decide(self.image):
            self._apply(each)
        return self.image


class DelegationTokenMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock, self.metadata = Clock(), Metadata()
        self.tokens = DelegationTokens(TokenSecret(b"s" * 32), lambda *_: False)
        self.tokens.know_cluster(lambda: self.metadata.image.delegation_tokens, self.clock)

        async def caught_up() -> None:
            pass

        config = NodeConfig(delegation_token_expiry_time_ms=EXPIRY_MS, delegation_token_max_lifetime_ms=LONGEST_MS)
        users = SimpleNamespace(
            delegation=self.tokens, has=lambda _: False, added_ms=lambda _: 0, is_in_file=lambda _: False
        )
        self.node: Any = SimpleNamespace(
            config=config, clock=self.clock, metadata=self.metadata, users=users, caught_up=caught_up
        )
        self.model: dict[str, Model] = {}

    def ask(self, call: Any) -> Any:
        """Return what a call gives, or the code of its error."""
        try:
            return asyncio.run(call)
        except SemelError as error:
            return error.code

    @rule(by=st.integers(0, 120))
    def time_passes(self, by: int) -> None:
        self.clock.at += by

    @rule(owner=st.sampled_from(PEOPLE), renewers=st.sets(st.sampled_from(PEOPLE)), life=PERIODS)
    def make(self, owner: str, renewers: set[str], life: int) -> None:
        made = self.ask(handler.create_token(self.node, owner, owner, sorted(renewers), life))
        last_ms = self.clock.at + (min(life, LONGEST_MS) if life > 0 else LONGEST_MS)
        model = Model(owner, tuple(sorted(renewers)), last_ms, min(last_ms, self.clock.at + EXPIRY_MS))
        assert (made.token.expiry_timestamp_ms, made.token.max_timestamp_ms) == (model.expiry_ms, model.last_ms)
        self.model[made.token.token_id] = model

    def _chosen(self, data: st.DataObject) -> tuple[str, Model]:
        # By the order in which they were made: ids are random, and Hypothesis wants the same token each time.
        token_id = list(self.model)[data.draw(st.integers(0, len(self.model) - 1))]
        return token_id, self.model[token_id]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), who=st.sampled_from(PEOPLE), period=PERIODS)
    def renew(self, data: st.DataObject, who: str, period: int) -> None:
        token_id, model = self._chosen(data)
        answer = self.ask(handler.renew_token(self.node, who, token_id, period))
        if model.expiry_ms < self.clock.at:
            assert answer is ErrorCode.DELEGATION_TOKEN_EXPIRED
        elif not model.may_change(who):
            assert answer is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        else:
            by = min(period, EXPIRY_MS) if period > 0 else EXPIRY_MS
            model.expiry_ms = min(model.last_ms, self.clock.at + by)
            assert answer.expiry_timestamp_ms == model.expiry_ms

    @precondition(lambda self: self.model)
    @rule(data=st.data(), who=st.sampled_from(PEOPLE), period=PERIODS)
    def expire(self, data: st.DataObject, who: str, period: int) -> None:
        token_id, model = self._chosen(data)
        answer = self.ask(handler.expire_token(self.node, who, token_id, period))
        if not model.may_change(who):
            assert answer is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        elif period < 0:
            assert answer == self.clock.at
            del self.model[token_id]
        elif model.expiry_ms < self.clock.at:
            assert answer is ErrorCode.DELEGATION_TOKEN_EXPIRED
        else:
            model.expiry_ms = min(model.last_ms, self.clock.at + period)
            assert answer == model.expiry_ms

    @rule()
    def sweep(self) -> None:
        for change in handler.expired_tokens(self.metadata.image, self.clock.at):
            self.metadata._apply(change)
        self.model = {name: each for name, each in self.model.items() if each.expiry_ms >= self.clock.at}

    @invariant()
    def good_are_those_that_have_not_expired(self) -> None:
        assert set(self.metadata.image.delegation_tokens) == set(self.model)
        for token_id, model in self.model.items():
            is_good = model.expiry_ms >= self.clock.at
            password = password_of(self.tokens.hmac(token_id))
            assert (asyncio.run(self.tokens.check(token_id, password)) is not None) is is_good
            assert asyncio.run(self.tokens.check(token_id, password[:-3] + "x==")) is None
            assert model.expiry_ms <= model.last_ms
            if is_good:
                assert self.tokens.left_ms(token_id) == max(1, model.expiry_ms - self.clock.at)


DelegationTokenMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
Test_S6_DelegationTokens = DelegationTokenMachine.TestCase
