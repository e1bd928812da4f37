"""Tokens for Amazon MSK's IAM access control, signed with the AWS credentials of this process (extra `msk`)."""

import asyncio
import time
from importlib import import_module

from aiokafka.errors import AuthenticationFailedError

from penstock.producer.settings import MSK_SIGNER
from penstock.producer.transport.access_token import USED_SHARE, AccessToken, NoToken, read_token

_MOST_S = 30.0  # AWS's library asks the metadata service or STS for credentials


async def sign_token(region: str) -> AccessToken:
    """Sign a token for the clusters of a region, in a thread.

    Raises AuthenticationFailedError if the credentials cannot be had or used, and TimeoutError.
    """
    async with asyncio.timeout(_MOST_S):
        return await asyncio.to_thread(_sign, region)


def _sign(region: str) -> AccessToken:
    try:
        signer = import_module(f"{MSK_SIGNER}.MSKAuthTokenProvider")  # here, because it takes long
        text, expires_ms = signer.generate_auth_token(region)
        return read_token(text.encode(), USED_SHARE * max(0.0, expires_ms / 1e3 - time.time()))
    except NoToken as error:
        raise AuthenticationFailedError(f"sasl_mechanism AWS_MSK_IAM: the signer gives {error}") from error
    except Exception as error:  # of botocore, whose messages may quote what a credential process has printed
        found = f"no token can be signed ({type(error).__name__})"
        raise AuthenticationFailedError(
            f"sasl_mechanism AWS_MSK_IAM: {found}. Check the AWS credentials: aws sts get-caller-identity"
        ) from None
