"""A model behind an endpoint, with Beam's retries and throttling."""

import apache_beam as beam
from apache_beam.ml.inference.base import PredictionResult, RemoteModelHandler, RunInference


class Client:
    """Answers in capitals."""

    def ask(self, question):
        """The answer."""
        return question.upper()


class Remote(RemoteModelHandler[str, PredictionResult, Client]):
    """Asks a client."""

    def __init__(self):
        super().__init__(namespace="Remote", num_retries=2, throttle_delay_secs=0, retry_filter=self.is_transient)

    @staticmethod
    def is_transient(error):
        """Whether to ask again."""
        return isinstance(error, ConnectionError)

    def create_client(self):
        return Client()

    def request(self, batch, model, inference_args=None):
        return [PredictionResult(question, model.ask(question)) for question in batch]

    def batch_elements_kwargs(self):
        return {"max_batch_size": 1}


def build(root, folder):
    """Answers."""
    return root | beam.Create(["why", "how"]) | RunInference(Remote())
