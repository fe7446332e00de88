#!/usr/bin/env python3
"""Reference forward pass in numpy for GGUF models of architecture qwen2, qwen3, llama and qwen35 (text only).

Written for clearness, not speed: weights are dequantised, every product is a plain float64 matrix product, and the
whole sequence is computed at once without a cache. Prints one JSON object; --out and --dump write arrays.

  reference_forward.py MODEL.gguf --tokens 1,2,3
  reference_forward.py MODEL.gguf --tokens @prompt.txt --out logits.f32
  reference_forward.py MODEL.gguf --tokens 1,2,3 --dump DIR --chunk 64

--dump writes DIR/<name>-<layer>.npy (float64, first axis = position unless noted):
  attn_norm       input of the mixer, after its RMSNorm
  q, k, v         attention: heads after norm and RoPE [T, heads, head size]
  attn_gate       qwen35 attention: gate before the sigmoid [T, heads * head size]
  attn_heads      attention: joined head outputs (gated in qwen35), before the output matrix
  conv            DeltaNet: convolution and SiLU of q, k, v [T, channels]
  gdn_q, gdn_k    DeltaNet: normalised (q also scaled) and spread to the value heads [T, value heads, head size]
  gdn_g, gdn_beta DeltaNet: log decay and write strength [T, value heads]
  gdn_out         DeltaNet: output of the recurrence, before its RMSNorm [T, value heads, head size]
  gdn_state       DeltaNet: state after the last position [value heads, key dim, value dim]
  mixer_out       output of attention or DeltaNet, before the residual sum
  mixer_residual  after the residual sum
  ffn_out         output of the feed-forward part
  layer_out       output of the layer
and DIR/embedding.npy, DIR/final_norm.npy.
"""
import argparse
import json
import os
import re
import sys

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize


def sigmoid(x):
    return np.where(x >= 0, 1.0, np.exp(-np.abs(x))) / (1.0 + np.exp(-np.abs(x)))


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.logaddexp(0.0, x)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def delta_rule_by_step(q, k, v, g, beta):
    """Gated delta rule, one position after the other.

    q, k [T, H, dk] (q already scaled), v [T, H, dv], g log decay [T, H], beta [T, H] -> outputs [T, H, dv], state [H, dk, dv]
    """
    T, H, dk = q.shape
    state = np.zeros((H, dk, v.shape[-1]), q.dtype)
    out = np.zeros(v.shape, q.dtype)
    for t in range(T):
        state = state * np.exp(g[t])[:, None, None]
        delta = beta[t][:, None] * (v[t] - np.einsum('hkv,hk->hv', state, k[t]))
        state = state + k[t][:, :, None] * delta[:, None, :]
        out[t] = np.einsum('hkv,hk->hv', state, q[t])
    return out, state


def delta_rule_by_chunk(q, k, v, g, beta, size):
    """The same in chunks: inside a chunk a unit lower triangular system replaces the recurrence."""
    T, H, dk = q.shape
    state = np.zeros((H, dk, v.shape[-1]), q.dtype)
    out = np.zeros(v.shape, q.dtype)
    for start in range(0, T, size):
        end = min(T, start + size)
        n = end - start
        cq, ck, cv, cg, cb = (np.moveaxis(a[start:end], 1, 0) for a in (q, k, v, g, beta))    # [H, n, ...]
        sums = np.cumsum(cg, 1)
        lower = np.tril(np.ones((n, n), bool))
        decay = np.exp(np.where(lower, sums[:, :, None] - sums[:, None, :], -np.inf))
        before = np.exp(sums)[:, :, None]
        system = np.eye(n) + np.tril((ck @ ck.transpose(0, 2, 1)) * decay, -1) * cb[:, :, None]
        writes = np.linalg.solve(system, cb[:, :, None] * (cv - before * (ck @ state)))
        result = before * (cq @ state) + ((cq @ ck.transpose(0, 2, 1)) * decay) @ writes
        out[start:end] = np.moveaxis(result, 0, 1)
        after = np.exp(sums[:, -1:] - sums)[:, :, None]
        state = np.exp(sums[:, -1])[:, None, None] * state + (ck * after).transpose(0, 2, 1) @ writes
    return out, state


class Model:
    def __init__(self, path, dtype=np.float64, cache=True):
        reader = GGUFReader(path)
        self.fields = reader.fields
        self.tensors = {t.name: t for t in reader.tensors}
        self.dtype = dtype
        self.cache = {} if cache else None
        self.arch = arch = self.get('general.architecture')
        if arch not in ('qwen2', 'qwen3', 'llama', 'qwen35'):
            raise ValueError(f'architecture {arch!r} is not supported')

        def key(name, default=None):
            return self.get(f'{arch}.{name}', default)

        self.n_layer = key('block_count') - (key('nextn_predict_layers') or 0)
        self.n_head = key('attention.head_count')
        self.n_kv = key('attention.head_count_kv', self.n_head)
        # One value a block: 0 where a block has no attention.
        self.n_head, self.n_kv = (max(n) if isinstance(n, (list, tuple)) else n for n in (self.n_head, self.n_kv))
        self.head_dim = key('attention.key_length') or key('embedding_length') // self.n_head
        self.eps = key('attention.layer_norm_rms_epsilon')
        self.rope_base = key('rope.freq_base', 10000.0)
        self.rope_dims = key('rope.dimension_count') or self.head_dim
        self.rope_adjacent = arch == 'llama'
        self.rope_divisor = key('rope.scaling.factor', 1.0) if key('rope.scaling.type') == 'linear' else 1.0
        if arch == 'qwen35':
            self.state_dim = key('ssm.state_size')
            self.key_heads = key('ssm.group_count')
            self.value_heads = key('ssm.time_step_rank')
            self.value_dim = key('ssm.inner_size') // self.value_heads
            self.taps = key('ssm.conv_kernel')

    def get(self, name, default=None):
        field = self.fields.get(name)
        return default if field is None else field.contents()

    def weight(self, name, default=KeyError):
        """A tensor as a float array; a matrix has one row per output."""
        if self.cache is not None and name in self.cache:
            return self.cache[name]
        t = self.tensors.get(name)
        if t is None:
            if default is KeyError:
                raise KeyError(f'the file has no tensor {name}')
            return default
        shape = tuple(int(n) for n in reversed(t.shape))
        plain = t.tensor_type in (GGMLQuantizationType.F32, GGMLQuantizationType.F16)
        x = (np.asarray(t.data) if plain else dequantize(t.data, t.tensor_type)).astype(self.dtype).reshape(shape)
        if self.cache is not None:
            self.cache[name] = x
        return x

    def linear(self, name, x):
        y = x @ self.weight(name + '.weight').T
        bias = self.weight(name + '.bias', None)
        return y if bias is None else y + bias

    def rms_norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weight(name + '.weight')

    def rope(self, x, positions):
        """x [T, heads, head size]; only the first rope_dims of a head turn"""
        n = self.rope_dims
        factors = self.weight('rope_freqs.weight', 1.0)
        angle = positions[:, None] / self.rope_divisor * (self.rope_base ** (-2.0 * np.arange(n // 2) / n) / factors)
        cos, sin = np.cos(angle)[:, None, :].astype(self.dtype), np.sin(angle)[:, None, :].astype(self.dtype)
        first, second = (slice(0, n, 2), slice(1, n, 2)) if self.rope_adjacent else (slice(0, n // 2), slice(n // 2, n))
        a, b = x[..., first], x[..., second]
        y = x.copy()
        y[..., first] = a * cos - b * sin
        y[..., second] = a * sin + b * cos
        return y

    def attention(self, p, x, positions, keep):
        T, H, hd = x.shape[0], self.n_head, self.head_dim
        q = self.linear(p + 'attn_q', x)
        k = self.linear(p + 'attn_k', x).reshape(T, self.n_kv, hd)
        v = self.linear(p + 'attn_v', x).reshape(T, self.n_kv, hd)
        gate = None
        if self.arch == 'qwen35':       # each head: hd values of the query, then hd values of the gate
            q = q.reshape(T, H, 2, hd)
            q, gate = q[:, :, 0], q[:, :, 1].reshape(T, H * hd)
            keep('attn_gate', gate)
        else:
            q = q.reshape(T, H, hd)
        if self.arch in ('qwen3', 'qwen35'):
            q, k = self.rms_norm(q, p + 'attn_q_norm'), self.rms_norm(k, p + 'attn_k_norm')
        q, k = self.rope(q, positions), self.rope(k, positions)
        keep('q', q), keep('k', k), keep('v', v)
        causal = np.tril(np.ones((T, T), bool))
        out = np.empty((T, H, hd), self.dtype)
        for h in range(H):
            g = h // (H // self.n_kv)
            out[:, h] = softmax(np.where(causal, q[:, h] @ k[:, g].T / np.sqrt(hd), -np.inf)) @ v[:, g]
        out = out.reshape(T, H * hd)
        if gate is not None:
            out = out * sigmoid(gate)
        keep('attn_heads', out)
        return self.linear(p + 'attn_output', out)

    def delta_net(self, p, x, chunk, keep):
        T, dk, nk, dv, nv = x.shape[0], self.state_dim, self.key_heads, self.value_dim, self.value_heads
        channels = self.linear(p + 'attn_qkv', x)
        z = self.linear(p + 'attn_gate', x).reshape(T, nv, dv)
        beta = sigmoid(self.linear(p + 'ssm_beta', x))
        g = self.weight(p + 'ssm_a') * softplus(self.linear(p + 'ssm_alpha', x) + self.weight(p + 'ssm_dt.bias'))

        # causal convolution per channel; the last tap belongs to the current position
        taps = self.weight(p + 'ssm_conv1d.weight')
        padded = np.concatenate([np.zeros((self.taps - 1, channels.shape[1]), self.dtype), channels], 0)
        y = silu(sum(padded[j:j + T] * taps[:, j] for j in range(self.taps)))
        keep('conv', y)
        q = y[:, :nk * dk].reshape(T, nk, dk)
        k = y[:, nk * dk:2 * nk * dk].reshape(T, nk, dk)
        v = y[:, 2 * nk * dk:].reshape(T, nv, dv)
        q = q / np.sqrt((q * q).sum(-1, keepdims=True) + self.eps) / np.sqrt(dk)
        k = k / np.sqrt((k * k).sum(-1, keepdims=True) + self.eps)
        heads = np.arange(nv) % nk      # value head n reads key head n mod nk
        q, k = q[:, heads], k[:, heads]
        out, state = delta_rule_by_chunk(q, k, v, g, beta, chunk) if chunk else delta_rule_by_step(q, k, v, g, beta)
        keep('gdn_q', q), keep('gdn_k', k), keep('gdn_g', g), keep('gdn_beta', beta), keep('gdn_out', out), keep('gdn_state', state)
        out = self.rms_norm(out, p + 'ssm_norm') * silu(z)
        return self.linear(p + 'ssm_out', out.reshape(T, nv * dv))

    def forward(self, tokens, chunk=0, dump=None, all_positions=False):
        """Logits [positions, vocabulary]: of the last position, or of all. dump: a dict that receives the intermediates."""
        tokens = np.asarray(tokens)
        positions = np.arange(len(tokens), dtype=np.float64)
        embedding = self.weight('token_embd.weight')
        x = embedding[tokens]
        if dump is not None:
            dump['embedding'] = x
        for il in range(self.n_layer):
            p = f'blk.{il}.'

            def keep(name, value):
                if dump is not None:
                    dump[f'{name}-{il}'] = value

            h = self.rms_norm(x, p + 'attn_norm')
            keep('attn_norm', h)
            if p + 'ssm_a' in self.tensors:
                h = self.delta_net(p, h, chunk, keep)
            else:
                h = self.attention(p, h, positions, keep)
            keep('mixer_out', h)
            x = x + h
            keep('mixer_residual', x)
            h = self.rms_norm(x, p + ('post_attention_norm' if self.arch == 'qwen35' else 'ffn_norm'))
            h = self.linear(p + 'ffn_down', silu(self.linear(p + 'ffn_gate', h)) * self.linear(p + 'ffn_up', h))
            keep('ffn_out', h)
            x = x + h
            keep('layer_out', x)
        x = self.rms_norm(x, 'output_norm')
        if dump is not None:
            dump['final_norm'] = x
        if not all_positions:
            x = x[-1:]
        return x @ self.weight('output.weight', embedding).T


def parse_tokens(text):
    if text.startswith('@'):
        with open(text[1:]) as f:
            text = f.read()
    tokens = [int(n) for n in re.findall(r'\d+', text)]
    if not tokens:
        raise ValueError('no token ids')
    return tokens


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('model', metavar='MODEL.gguf')
    ap.add_argument('--tokens', required=True, help='token ids with any separator, or @FILE')
    ap.add_argument('--chunk', type=int, default=0, metavar='N', help='qwen35: chunks of N positions instead of single steps')
    ap.add_argument('--dump', metavar='DIR', help='write the intermediates of every layer')
    ap.add_argument('--out', metavar='FILE', help='write the logits of the last position: .npy float64, any other name raw float32')
    ap.add_argument('--all', action='store_true', help='--out gets the logits of every position')
    ap.add_argument('--ids', default='', help='token ids whose logits are printed, with any separator')
    ap.add_argument('--top', type=int, default=10, metavar='N', help='print the N highest logits (default: 10)')
    ap.add_argument('--logits', action='store_true', help='print all logits of the last position')
    ap.add_argument('--f32', action='store_true', help='float32 instead of float64 (half the memory)')
    ap.add_argument('--no-cache', action='store_true', help='do not keep dequantised weights (large models)')
    a = ap.parse_args()
    try:
        model = Model(a.model, np.float32 if a.f32 else np.float64, cache=not a.no_cache)
        tokens = parse_tokens(a.tokens)
        n_vocab = int(model.tensors['token_embd.weight'].shape[1])
        if max(tokens) >= n_vocab:
            raise ValueError(f'token id {max(tokens)} is not below the vocabulary size {n_vocab}')
    except (OSError, ValueError) as e:
        ap.error(str(e))
    dump = {} if a.dump else None
    logits = model.forward(tokens, a.chunk, dump, a.all)
    last = np.asarray(logits[-1], np.float64)
    if a.out:
        result = logits if a.all else logits[-1]
        if a.out.endswith('.npy'):
            np.save(a.out, result)
        else:
            np.ascontiguousarray(result, '<f4').tofile(a.out)
    if a.dump:
        os.makedirs(a.dump, exist_ok=True)
        for name, value in dump.items():
            np.save(os.path.join(a.dump, name + '.npy'), value)
    top = np.argsort(-last, kind='stable')[:a.top]
    peak = last.max()
    report = dict(arch=model.arch, layers=model.n_layer, n_tokens=len(tokens), n_vocab=len(last), argmax=int(last.argmax()),
                  log_sum_exp=float(peak + np.log(np.exp(last - peak).sum())), top=[[int(i), float(last[i])] for i in top],
                  ids={int(i): float(last[int(i)]) for i in re.findall(r'\d+', a.ids)})
    if a.logits:
        report['logits'] = [float(f'{x:.9g}') for x in last]
    print(json.dumps(report))


if __name__ == '__main__':
    sys.exit(main())
