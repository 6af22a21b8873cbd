"""The handlers' rows in the table of handlers, readable without importing a framework."""

from __future__ import annotations

from headrace.core.handler import HandlerCard

__all__ = ["CARDS"]

_ARRAY, _TENSOR = "a numpy array", "a tensor"
_KEYED = "a dict of tensors, named as the model's arguments"
_ROW, _TF_ROW = "its row of the model's answer, on the CPU", "its row of the model's answer, a tensor on the CPU"
_OUTPUTS = "a dict of its rows of the model's outputs, on the CPU"
_SAID = "what `model.predict` returns for it"
_SAID_OF_ROWS = "an array of what `model.predict` returns for each row"
_SAID_OF_ROW = f"{_SAID_OF_ROWS}; for a single row, only its prediction"

_ONE_HOST = "in one host"
_ENDPOINT = "at the endpoint"
_ANSWERED = "the answer: a text or, with `json_schema`, what is in it"
_ASKED = "a prompt, a conversation or, with `prompt`, a row"
_SERVER = "in the server, which one host runs"
_SKLEARN = "mapped; trees and forests copy their nodes in each process"
_TORCH = "mapped on the CPU; in one host on a GPU, or as TorchScript"
_TRANSFORMERS = "mapped on the CPU; in one host on one GPU or several"
_EMBEDDER = "mapped on the CPU; in one host on a GPU"

_GENERATED = "a dict: `text`, `finish_reason`, `input_tokens`, `output_tokens`"
_ENGINE = "one engine, in one host"

CARDS = {
    "anthropic_inference.AnthropicChatModelHandler": HandlerCard(
        _ASKED,
        _ANSWERED,
        _ENDPOINT,
        "safe",
        "anthropic",
        summary="Claude, at Anthropic's API",
        command="texts.jsonl --model claude-haiku-4-5 --prompt 'Is this good? {text}'",
    ),
    "anthropic_inference.AnthropicModelHandler": HandlerCard(
        "what its `request_fn` takes", "what its `request_fn` returns", _ENDPOINT, "safe", "anthropic"
    ),
    "gemini_inference.GeminiModelHandler": HandlerCard(
        "a prompt; with `prompt`, a row; or what `request_fn` takes",
        "Google's `GenerateContentResponse`, or its text",
        _ENDPOINT,
        "safe",
        "google",
        summary="Gemini, at Google's API or on Vertex AI",
        command="texts.jsonl --model gemini-2.5-flash --prompt 'Is this good? {text}'",
    ),
    "huggingface_generation.HuggingFaceGenerationModelHandler": HandlerCard(
        _ASKED,
        _GENERATED,
        _ENGINE,
        "safe",
        "huggingface",
        summary="text from a Hugging Face language model, run here",
        command="texts.jsonl --model Qwen/Qwen2.5-0.5B-Instruct --prompt 'Is this good? {text}'",
    ),
    "huggingface_inference.HuggingFaceModelHandlerKeyedTensor": HandlerCard(
        _KEYED,
        _OUTPUTS,
        _TRANSFORMERS,
        "safe",
        "huggingface",
        summary="a Transformers model; columns are its arguments",
        command="tokens.parquet --model models/bert --handler-arg model_class=AutoModel --handler-arg framework=pt",
    ),
    "huggingface_inference.HuggingFacePipelineModelHandler": HandlerCard(
        "what the task takes: a text, an image, a dict ...",
        "what the task makes of it",
        _TRANSFORMERS,
        "safe",
        "huggingface",
        summary="a Transformers pipeline, for any of its tasks",
        command="texts.jsonl --model models/sentiment --handler-arg task=text-classification --columns text",
    ),
    "huggingface_inference.HuggingFaceModelHandlerTensor": HandlerCard(
        "a tensor: the model's first argument",
        _OUTPUTS,
        _TRANSFORMERS,
        "safe",
        "huggingface",
        summary="a Transformers model; a row is its first argument",
        command="tokens.csv --model models/bert --handler-arg model_class=AutoModel --columns 'id_*'",
    ),
    "kserve_inference.KServeModelHandler": HandlerCard(
        "an array, or a dict of arrays by input",
        "its row of the model's output, or a dict of those",
        _ENDPOINT,
        "safe",
        "kserve",
        summary="a server of the KServe protocol: Triton, MLServer ...",
        command="rows.csv --url http://localhost:8000 --model classifier",
    ),
    "onnx_inference.OnnxModelHandlerNumpy": HandlerCard(
        _ARRAY,
        "its row of the model's first output",
        _ONE_HOST,
        "safe",
        "onnx",
        summary="an ONNX model, in ONNX Runtime",
        command="rows.csv --model model.onnx --columns 'x_*'",
    ),
    "openai_inference.OpenAIChatModelHandler": HandlerCard(
        _ASKED,
        _ANSWERED,
        _ENDPOINT,
        "safe",
        "openai",
        summary="chat, at OpenAI or another server of its API",
        command="texts.jsonl --model gpt-4o-mini --prompt 'Is this good? {text}'",
    ),
    "openai_inference.OpenAICompletionsModelHandler": HandlerCard(
        "a prompt or, with `prompt`, a row",
        "the text that follows",
        _ENDPOINT,
        "safe",
        "openai",
        summary="completions, at OpenAI or another server of its API",
        command="texts.jsonl --model base-model --url http://localhost:8000/v1 --columns text",
    ),
    "openai_inference.OpenAIEmbeddingsModelHandler": HandlerCard(
        "a text or, with `prompt`, a row",
        "its embedding, a list of floats",
        _ENDPOINT,
        "safe",
        "openai",
        summary="embeddings, at OpenAI or another server of its API",
        command="texts.jsonl --model text-embedding-3-small --columns text",
    ),
    "pytorch_inference.PytorchModelHandlerKeyedTensor": HandlerCard(
        _KEYED,
        _ROW,
        _TORCH,
        "safe",
        "pytorch",
        summary="a PyTorch model; columns are its arguments",
        command="rows.csv --model net.pt --handler-arg model_class=my_net:Net",
    ),
    "pytorch_inference.PytorchModelHandlerTensor": HandlerCard(
        _TENSOR,
        _ROW,
        _TORCH,
        "safe",
        "pytorch",
        summary="a PyTorch model; a row is a tensor",
        command="rows.csv --model net.pt --handler-arg model_class=my_net:Net --columns 'x_*'",
    ),
    "sentence_transformer_inference.SentenceTransformerModelHandler": HandlerCard(
        "a text",
        "its embedding, a numpy array",
        _EMBEDDER,
        "safe",
        "sentence-transformers",
        summary="embeddings of texts, by Sentence Transformers",
        command="texts.jsonl --model all-MiniLM-L6-v2 --columns text",
    ),
    "sklearn_inference.SklearnModelHandlerNumpy": HandlerCard(
        _ARRAY,
        _SAID,
        _SKLEARN,
        "safe",
        "sklearn",
        summary="a scikit-learn model; a row is an array",
        command="rows.csv --model model.pkl --columns 'x_*'",
    ),
    "sklearn_inference.SklearnModelHandlerPandas": HandlerCard(
        "a DataFrame with one row",
        _SAID,
        _SKLEARN,
        "safe",
        "sklearn",
        summary="a scikit-learn model; a row is a pandas frame",
        command="rows.csv --model model.pkl --columns 'age,city'",
    ),
    "tensorflow_inference.TFModelHandlerNumpy": HandlerCard(
        _ARRAY,
        _TF_ROW,
        _ONE_HOST,
        "safe",
        "tensorflow",
        summary="a TensorFlow or Keras model; a row is an array",
        command="rows.csv --model model.keras --columns 'x_*'",
    ),
    "tensorflow_inference.TFModelHandlerTensor": HandlerCard(
        _TENSOR,
        _TF_ROW,
        _ONE_HOST,
        "safe",
        "tensorflow",
        summary="a TensorFlow or Keras model; a row is a tensor",
        command="rows.csv --model model.keras --columns 'x_*'",
    ),
    "tensorrt_inference.TensorRTEngineHandlerNumPy": HandlerCard(
        _ARRAY,
        "a list with its row of each output",
        _ONE_HOST,
        "one at a time",
        "tensorrt",
        summary="a TensorRT engine, on an NVIDIA GPU",
        command="rows.csv --model model.engine --handler-arg min_batch_size=1 --handler-arg max_batch_size=64",
    ),
    "vertex_ai_inference.VertexAIModelHandlerJSON": HandlerCard(
        "what the model's JSON takes",
        "what its JSON says",
        _ENDPOINT,
        "safe",
        "vertex",
        summary="an endpoint of Vertex AI; a row is a JSON object",
        command="rows.csv --model ENDPOINT_ID --handler-arg project=my-project --handler-arg location=us-central1",
    ),
    "vllm_engine.VLLMEngineModelHandler": HandlerCard(
        _ASKED,
        _GENERATED,
        _ENGINE,
        "safe",
        "vllm",
        summary="text from a language model, in vLLM's engine",
        command="texts.jsonl --model Qwen/Qwen2.5-0.5B-Instruct --prompt 'Is this good? {text}'",
    ),
    "vllm_inference.VLLMChatModelHandler": HandlerCard(
        "a list of `OpenAIChatMessage`",
        "OpenAI's `ChatCompletion`",
        _SERVER,
        "safe",
        "vllm",
        summary="chat, by a vLLM server that Headrace starts",
        command="texts.jsonl --model Qwen/Qwen2.5-0.5B-Instruct --columns user",
    ),
    "vllm_inference.VLLMCompletionsModelHandler": HandlerCard(
        "a prompt",
        "OpenAI's `Completion`",
        _SERVER,
        "safe",
        "vllm",
        summary="completions, by a vLLM server that Headrace starts",
        command="texts.jsonl --model Qwen/Qwen2.5-0.5B --columns text",
    ),
    "xgboost_inference.XGBoostModelHandlerNumpy": HandlerCard(
        "a numpy array: a matrix of rows of features, or one row",
        _SAID_OF_ROW,
        _ONE_HOST,
        "safe",
        "xgboost",
        summary="an XGBoost model; a row is an array",
        command="rows.csv --model model.ubj --handler-arg model_class=XGBClassifier --columns 'x_*'",
    ),
    "xgboost_inference.XGBoostModelHandlerPandas": HandlerCard(
        "a DataFrame, or a Series for one row",
        _SAID_OF_ROW,
        _ONE_HOST,
        "safe",
        "xgboost",
        summary="an XGBoost model; a row is a pandas Series",
        command="rows.csv --model model.ubj --handler-arg model_class=XGBClassifier --columns 'age,city'",
    ),
    "xgboost_inference.XGBoostModelHandlerSciPy": HandlerCard(
        "a sparse matrix", _SAID_OF_ROWS, _ONE_HOST, "safe", "xgboost"
    ),
    "xgboost_inference.XGBoostModelHandlerDatatable": HandlerCard(
        "a datatable Frame", _SAID_OF_ROWS, _ONE_HOST, "safe", "datatable"
    ),
}
"""By module and class, as the documentation names a handler."""
