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

    # Users with SCRAM credentials

    async def list_users(self) -> list[str]:
        """Return the names of all users with SCRAM credentials, sorted.

        Raises:
            ApiError: CLUSTER_AUTHORIZATION_FAILED.
        """
        return await self._driver.run(self._core.list_users())

    async def describe_users(
        self, names: str | Iterable[str] | None = None
    ) -> dict[str, UserDescription]:
        """Return the mechanisms of users, with the hash iterations of each mechanism.

        Args:
            names: The users. None is all users.

        Raises:
            ApiError: RESOURCE_NOT_FOUND: a user has no SCRAM credentials. CLUSTER_AUTHORIZATION_FAILED.
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
        """Create a user with a password, or replace the password of a user.

        The client salts and hashes the password, so that no broker ever receives it.

        Args:
            name: The user.
            password: The password.
            mechanisms: The mechanisms with which the user can authenticate: "SCRAM-SHA-256", "SCRAM-SHA-512" or both.
                Credentials for the other mechanism are deleted.
            iterations: How often the password is hashed, 4096 to 16384. More iterations make it harder to guess
                passwords from stolen data, and slow down each login.

        Raises:
            SaslError: Brokers do not accept the mechanism, the iterations or the password.
            ApiError: CLUSTER_AUTHORIZATION_FAILED, or an error about the name.
        """
        await self._driver.run(
            self._core.set_user(name, password, mechanisms, iterations, os.urandom)
        )

    async def delete_user(self, name: str) -> None:
        """Delete a user's credentials. Open connections and access control lists of the user stay.

        Raises:
            ApiError: RESOURCE_NOT_FOUND: the user has no credentials. CLUSTER_AUTHORIZATION_FAILED.
        """
        await self._driver.run(self._core.delete_user(name))

    # Access control lists

    async def create_acls(self, bindings: Iterable[AclBinding]) -> None:
        """Create access control lists. Existing ones stay.

        Args:
            bindings: The bindings to create, each with a principal, an operation, a permission and a resource.

        Raises:
            ApiError: The first refusal. Other bindings may be created. SECURITY_DISABLED: the broker has no authorizer.
        """
        await self._driver.run(self._core.create_acls(bindings))

    async def describe_acls(self, which: AclFilter | None = None) -> list[AclBinding]:
        """Return access control lists, sorted.

        Args:
            which: The filter that bindings must match. None returns all bindings.

        Raises:
            ApiError: SECURITY_DISABLED: the broker has no authorizer. CLUSTER_AUTHORIZATION_FAILED.
        """
        return await self._driver.run(self._core.describe_acls(which))

    async def delete_acls(self, filters: Iterable[AclFilter]) -> list[AclBinding]:
        """Delete the access control lists that match one of the filters.

        Args:
            filters: The filters. `AclFilter()` matches every binding.

        Returns:
            The deleted bindings, sorted.

        Raises:
            ApiError: The first refusal. Other bindings may be deleted. SECURITY_DISABLED: the broker has no authorizer.
        """
        return await self._driver.run(self._core.delete_acls(filters))
