"""The handlers' rows in the table of handlers, readable without importing a framework."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.core.handler import HandlerCard

_TEXT = """
anthropic_inference.AnthropicChatModelHandler [anthropic] Claude, at Anthropic's API
    a prompt, a conversation or, with `prompt`, a row -> the answer: a text or, with `json_schema`, what is in it
    command: texts.jsonl --model claude-haiku-4-5 --prompt 'Is this good? {text}'
anthropic_inference.AnthropicModelHandler [anthropic]
    what its `request_fn` takes -> what its `request_fn` returns
gemini_inference.GeminiModelHandler [google] Gemini, at Google's API or on Vertex AI
    a prompt; with `prompt`, a row; or what `request_fn` takes -> Google's `GenerateContentResponse`, or its text
    command: texts.jsonl --model gemini-2.5-flash --prompt 'Is this good? {text}'
huggingface_generation.HuggingFaceGenerationModelHandler [huggingface] text from a Hugging Face language model, run here
    a prompt, a conversation; with `prompt`, a row -> a dict: `text`, `finish_reason` ...; with `task` other things
    weights: one engine, in one host
    command: texts.jsonl --model Qwen/Qwen2.5-0.5B-Instruct --prompt 'Is this good? {text}'
huggingface_inference.HuggingFaceModelHandlerKeyedTensor [huggingface] a Transformers model; columns are its arguments
    a dict of tensors, named as the model's arguments -> a dict of its rows of the model's outputs, on the CPU
    weights: mapped on the CPU; in one host on one GPU or several
    command: tokens.parquet --model models/bert --handler-arg model_class=AutoModel --handler-arg framework=pt
huggingface_inference.HuggingFacePipelineModelHandler [huggingface] a Transformers pipeline, for any of its tasks
    what the task takes: a text, an image, a dict ... -> what the task makes of it
    weights: mapped on the CPU; in one host on one GPU or several
    command: texts.jsonl --model models/sentiment --handler-arg task=text-classification --columns text
huggingface_inference.HuggingFaceModelHandlerTensor [huggingface] a Transformers model; a row is its first argument
    a tensor: the model's first argument -> a dict of its rows of the model's outputs, on the CPU
    weights: mapped on the CPU; in one host on one GPU or several
    command: tokens.csv --model models/bert --handler-arg model_class=AutoModel --columns 'id_*'
kserve_inference.KServeModelHandler [kserve] a server of the KServe protocol: Triton, MLServer ...
    an array, or a dict of arrays by input -> its row of the model's output, or a dict of those
    command: rows.csv --url http://localhost:8000 --model classifier
onnx_inference.OnnxModelHandlerNumpy [onnx] an ONNX model, in ONNX Runtime
    a numpy array -> its row of the model's first output
    weights: in one host
    command: rows.csv --model model.onnx --columns 'x_*'
openai_inference.OpenAIChatModelHandler [openai] chat, at OpenAI or another server of its API
    a prompt, a conversation or, with `prompt`, a row -> the answer: a text or, with `json_schema`, what is in it
    command: texts.jsonl --model gpt-4o-mini --prompt 'Is this good? {text}'
openai_inference.OpenAICompletionsModelHandler [openai] completions, at OpenAI or another server of its API
    a prompt or, with `prompt`, a row -> the text that follows
    command: texts.jsonl --model base-model --url http://localhost:8000/v1 --columns text
openai_inference.OpenAIEmbeddingsModelHandler [openai] embeddings, at OpenAI or another server of its API
    a text or, with `prompt`, a row -> its embedding, a list of floats
    command: texts.jsonl --model text-embedding-3-small --columns text
pytorch_inference.PytorchModelHandlerKeyedTensor [pytorch] a PyTorch model; columns are its arguments
    a dict of tensors, named as the model's arguments -> its row of the model's answer, on the CPU
    weights: mapped on the CPU; in one host on a GPU, or as TorchScript
    command: rows.csv --model net.pt --handler-arg model_class=my_net:Net
pytorch_inference.PytorchModelHandlerTensor [pytorch] a PyTorch model; a row is a tensor
    a tensor -> its row of the model's answer, on the CPU
    weights: mapped on the CPU; in one host on a GPU, or as TorchScript
    command: rows.csv --model net.pt --handler-arg model_class=my_net:Net --columns 'x_*'
sentence_transformer_inference.SentenceTransformerModelHandler [sentence-transformers]
    summary: embeddings of texts, by Sentence Transformers
    a text -> its embedding, a numpy array
    weights: mapped on the CPU; in one host on a GPU
    command: texts.jsonl --model all-MiniLM-L6-v2 --columns text
sklearn_inference.SklearnModelHandlerNumpy [sklearn] a scikit-learn model; a row is an array
    a numpy array -> what `model.predict` returns for it
    weights: mapped; trees and forests copy their nodes in each process
    command: rows.csv --model model.pkl --columns 'x_*'
sklearn_inference.SklearnModelHandlerPandas [sklearn] a scikit-learn model; a row is a pandas frame
    a DataFrame with one row -> what `model.predict` returns for it
    weights: mapped; trees and forests copy their nodes in each process
    command: rows.csv --model model.pkl --columns 'age,city'
tensorflow_inference.TFModelHandlerNumpy [tensorflow] a TensorFlow or Keras model; a row is an array
    a numpy array -> its row of the model's answer, a tensor on the CPU
    weights: in one host
    command: rows.csv --model model.keras --columns 'x_*'
tensorflow_inference.TFModelHandlerTensor [tensorflow] a TensorFlow or Keras model; a row is a tensor
    a tensor -> its row of the model's answer, a tensor on the CPU
    weights: in one host
    command: rows.csv --model model.keras --columns 'x_*'
tensorrt_inference.TensorRTEngineHandlerNumPy [tensorrt] a TensorRT engine, on an NVIDIA GPU
    a numpy array -> a list with its row of each output
    weights: in one host
    threads: one at a time
    command: rows.csv --model model.engine --handler-arg min_batch_size=1 --handler-arg max_batch_size=64
vertex_ai_inference.VertexAIModelHandlerJSON [vertex] an endpoint of Vertex AI; a row is a JSON object
    what the model's JSON takes -> what its JSON says
    command: rows.csv --model ENDPOINT_ID --handler-arg project=my-project --handler-arg location=us-central1
vllm_engine.VLLMEngineModelHandler [vllm] text from a language model, in vLLM's engine
    a prompt, a conversation; with `prompt`, a row -> a dict: `text`, `finish_reason` ...; with `task` other things
    weights: one engine, in one host
    command: texts.jsonl --model Qwen/Qwen2.5-0.5B-Instruct --prompt 'Is this good? {text}'
vllm_inference.VLLMChatModelHandler [vllm] chat, by a vLLM server that Headrace starts
    a list of `OpenAIChatMessage` -> OpenAI's `ChatCompletion`
    weights: in the server, which one host runs
    command: texts.jsonl --model Qwen/Qwen2.5-0.5B-Instruct --columns user
vllm_inference.VLLMCompletionsModelHandler [vllm] completions, by a vLLM server that Headrace starts
    a prompt -> OpenAI's `Completion`
    weights: in the server, which one host runs
    command: texts.jsonl --model Qwen/Qwen2.5-0.5B --columns text
xgboost_inference.XGBoostModelHandlerNumpy [xgboost] an XGBoost model; a row is an array
    a numpy array: a matrix of rows of features, or one row -> what `model.predict` returns for these rows, or this row
    weights: in one host
    command: rows.csv --model model.ubj --handler-arg model_class=XGBClassifier --columns 'x_*'
xgboost_inference.XGBoostModelHandlerPandas [xgboost] an XGBoost model; a row is part of a data frame
    a DataFrame, or a row (Series, dict, `beam.Row`) -> what `model.predict` returns for these rows, or this row
    weights: in one host
    command: rows.csv --model model.ubj --handler-arg model_class=XGBClassifier --columns 'age,city'
xgboost_inference.XGBoostModelHandlerSciPy [xgboost]
    a sparse matrix -> an array of what `model.predict` returns for each row
    weights: in one host
xgboost_inference.XGBoostModelHandlerDatatable [datatable]
    a datatable Frame -> an array of what `model.predict` returns for each row
    weights: in one host
"""
"""For each handler its module and class, its extra and summary; what it takes and predicts; where its weights live with
``large_model`` if not at an endpoint, and the end of its command line."""


def _read(text: str) -> Iterator[tuple[str, HandlerCard]]:
    for entry in text.strip().replace("\n    ", "\t").split("\n"):
        title, *lines = entry.split("\t")
        name, extra, summary = (part.strip() for part in title.replace("]", "[").split("["))
        fields = {"threads": "safe", "weights": "at the endpoint", "extra": extra, "summary": summary}
        for line in lines:
            if " -> " in line:
                fields["example"], fields["prediction"] = line.split(" -> ")
            else:
                field, text = line.split(": ", 1)
                fields[field] = text
        yield name, HandlerCard(**fields)


CARDS = dict(_read(_TEXT))
"""By module and class, as the documentation names a handler."""
