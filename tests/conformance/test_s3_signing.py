"""The requests that we sign ourselves: the signature and the address."""

from __future__ import annotations

import pytest

from orchestrator.stores.s3.clients import Place
from orchestrator.stores.s3.credentials import Keys
from orchestrator.stores.s3.signing import query_of, signed


def test_signatures_are_those_of_the_examples_that_aws_publishes() -> None:
    """https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html"""
    keys = Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    now = 1369353600.0  # 2013-05-24
    for query, signature in (
        ({"lifecycle": ""}, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        (
            {"prefix": "J", "max-keys": "2"},
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ):
        url = f"https://examplebucket.s3.amazonaws.com/?{query_of(query)}"
        assert signed("GET", url, keys, "us-east-1", now)["authorization"] == (
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
            f"SignedHeaders=host;x-amz-content-sha256;x-amz-date,Signature={signature}"
        )
    passing = signed("GET", url, Keys("a", "b", "the-token"), "us-east-1", now)
    assert passing["x-amz-security-token"] == "the-token"
    assert "x-amz-date;x-amz-security-token" in passing["authorization"]


@pytest.mark.parametrize(
    ("place", "key", "url"),
    [
        (Place("https://s3.hf.co/me", "b", "", "r"), None, "https://s3.hf.co/me/b"),
        (Place("https://h:9", "b", "a/p", "r"), "k=1/x", "https://h:9/b/a/p/k%3D1/x"),
        (Place("https://h", "b", "p", "r", True), None, "https://b.h/"),
        (Place("https://h", "b", "p", "r", True), "x", "https://b.h/p/x"),
    ],
)
def test_the_address_follows_the_style_and_the_prefix(place: Place, key: str | None, url: str) -> None:
    assert place.url(key) == url
