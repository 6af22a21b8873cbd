"""Small models of random weights, saved as users save them: no model of these tests is on a hub."""

from __future__ import annotations

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d", "e", "good", "bad", "film", "the", "is"]
LONGEST = 32
"""Tokens of a text of BERT."""


def save_bert(folder, model_class, hidden_size=16, **options):
    """Saves a BERT, of a class of transformers, with a tokenizer of few words; returns its folder."""
    import torch
    import transformers

    words = folder / "words.txt"
    words.write_text("\n".join(WORDS))
    sizes = {"hidden_size": hidden_size, "intermediate_size": 2 * hidden_size}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=LONGEST, **sizes, **options)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model_class(config).save_pretrained(folder)
    transformers.BertTokenizer(str(words), model_max_length=LONGEST).save_pretrained(folder)
    return str(folder)


def save_llama(folder, tokenizer, bos_token, hidden_size, longest):
    """Saves a language model with a tokenizer, which has a chat template; returns its folder."""
    import torch
    import transformers

    tokenizer.save_pretrained(folder)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 2 * hidden_size}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        max_position_embeddings=longest,
        bos_token_id=tokenizer.convert_tokens_to_ids(bos_token),
        **ends,
        **sizes,
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = transformers.LlamaForCausalLM(config)
        torch.nn.init.normal_(model.lm_head.weight)  # or every text would be one word, repeated
        torch.nn.init.normal_(model.model.embed_tokens.weight)
        model.save_pretrained(folder)
    return str(folder)
