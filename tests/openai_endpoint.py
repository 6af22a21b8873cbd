"""What a server on localhost answers that speaks OpenAI's API; with ``http_endpoint.serving`` it is one."""

from __future__ import annotations

import datetime
import ssl
import sys

import cloudpickle

from http_endpoint import Answer

cloudpickle.register_pickle_by_value(sys.modules[__name__])

USED = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
LONGEST = 1000
"""Characters of a prompt that is not too long."""


def completion(text, finish="stop", model="m", **message):
    """A chat completion; None: without a text."""
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text, **message}}
    return Answer(
        body={"id": "c", "object": "chat.completion", "created": 1, "model": model, "choices": [choice], "usage": USED}
    )


def refusing(status, message="refused", code=None, headers=None, **more):
    """An error as OpenAI says it."""
    error = {"message": message, "type": "some_error", "param": None, "code": code}
    return Answer(status, {"error": error}, headers or {}, **more)


def too_long(prompt):
    return refusing(400, f"maximum context length is {LONGEST}, and you gave {len(prompt)}", "context_length_exceeded")


def vector_of(text):
    return [float(len(text)), 0.5]


def prompts_of(asked):
    """The texts in a request."""
    if "messages" in asked:
        return [message["content"] for message in asked["messages"]]
    return [asked["prompt"]] if "prompt" in asked else asked["input"]


def speaking(text_of=str.upper, fault=lambda asked, before: None):
    """How such a server answers.

    Args:
        text_of: the answer to a prompt: the last message of a conversation.
        fault: from (request, how many came before) to an Answer; None: all is well.
    """

    def answer(asked, before):
        wrong = fault(asked, before)
        if wrong is not None:
            return wrong
        for prompt in prompts_of(asked):
            if len(prompt) > LONGEST:
                return too_long(prompt)
        if "messages" in asked:
            return completion(text_of(asked["messages"][-1]["content"]), model=asked["model"])
        if "prompt" in asked:
            choice = {"index": 0, "finish_reason": "stop", "text": text_of(asked["prompt"])}
            body = {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
            return Answer(body={**body, "usage": USED})
        data = [
            {"object": "embedding", "index": n, "embedding": vector_of(text)} for n, text in enumerate(asked["input"])
        ]
        usage = {"prompt_tokens": 5, "total_tokens": 5}
        return Answer(body={"object": "list", "model": "m", "data": data[::-1], "usage": usage})

    return answer


def self_signed(folder):
    """A context for a server whose certificate nobody trusts."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime(2020, 1, 1)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(datetime.datetime(2120, 1, 1))
    certificate = builder.sign(key, hashes.SHA256())
    file = folder / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context
