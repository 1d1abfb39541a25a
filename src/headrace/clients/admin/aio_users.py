"""The calls of the asyncio admin client about users and access control lists."""

from __future__ import annotations

import os
from collections.abc import Iterable

from headrace.clients.admin.core import AdminCore
from headrace.clients.arguments import Int32, checks_arguments
from headrace.clients.drivers import AsyncDriver
from headrace.clients.flows.scram import DEFAULT_ITERATIONS, MECHANISMS, UserDescription
from headrace.security.acls import AclBinding, AclFilter


@checks_arguments
class UserCalls:
    """The part of `Admin` that lists, creates and deletes users and access control lists."""

    _driver: AsyncDriver
    _core: AdminCore

    # Users, who prove a password by SCRAM

    async def list_users(self) -> list[str]:
        """Return the names of all users with SCRAM credentials, sorted.

        Raises:
            ApiError: CLUSTER_AUTHORIZATION_FAILED.
        """
        return await self._driver.run(self._core.list_users())

    async def describe_users(
        self, names: str | Iterable[str] | None = None
    ) -> dict[str, UserDescription]:
        """Return by name the mechanisms by which users can authenticate, and how often their passwords are hashed.

        Args:
            names: Which users; None is all.

        Raises:
            ApiError: RESOURCE_NOT_FOUND: one has no SCRAM credentials. CLUSTER_AUTHORIZATION_FAILED.
        """
        return await self._driver.run(self._core.describe_users(names))

    async def set_user(
        self,
        name: str,
        password: str,
        *,
        mechanisms: Iterable[str] = MECHANISMS,
        iterations: Int32 = DEFAULT_ITERATIONS,
    ) -> None:
        """Give a user a password, whether there is such a user or not; an earlier password is void.

        The password is salted and hashed here: no broker ever sees it.

        Args:
            name: The user.
            password: The password.
            mechanisms: How the user can authenticate with it, "SCRAM-SHA-256" or "SCRAM-SHA-512" or both; by no other
                mechanism any more.
            iterations: How often it is hashed, 4096 to 16384: what somebody pays who got hold of the broker's data and
                tries passwords, and the user's clients when they connect.

        Raises:
            SaslError: Mechanism, iterations or password are none that brokers take.
            ApiError: The broker refuses: CLUSTER_AUTHORIZATION_FAILED, or what is wrong with the name.
        """
        await self._driver.run(
            self._core.set_user(name, password, mechanisms, iterations, os.urandom)
        )

    async def delete_user(self, name: str) -> None:
        """Delete a user's credentials. Connections that the user has stay; what the user may do stays known.

        Raises:
            ApiError: RESOURCE_NOT_FOUND: there are none. CLUSTER_AUTHORIZATION_FAILED.
        """
        await self._driver.run(self._core.delete_user(name))

    # Rights

    async def create_acls(self, bindings: Iterable[AclBinding]) -> None:
        """Allow or deny something; what is there already stays as it is.

        Args:
            bindings: Who may do, or not do, what to which resource.

        Raises:
            ApiError: The first refusal; others may have been created. SECURITY_DISABLED: the broker has no authorizer.
        """
        await self._driver.run(self._core.create_acls(bindings))

    async def describe_acls(self, which: AclFilter | None = None) -> list[AclBinding]:
        """Return who is allowed and denied what, sorted.

        Args:
            which: Which bindings; None is all.

        Raises:
            ApiError: SECURITY_DISABLED: the broker has no authorizer. CLUSTER_AUTHORIZATION_FAILED.
        """
        return await self._driver.run(self._core.describe_acls(which))

    async def delete_acls(self, filters: Iterable[AclFilter]) -> list[AclBinding]:
        """Delete what one of the filters means.

        Args:
            filters: Which bindings. `AclFilter()` means all of them.

        Returns:
            What was deleted, sorted.

        Raises:
            ApiError: The first refusal; others may have been deleted. SECURITY_DISABLED: the broker has no authorizer.
        """
        return await self._driver.run(self._core.delete_acls(filters))
