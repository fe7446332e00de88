#!/usr/bin/env python3
"""The references and timings of the native program on a machine without Rust. Needs numpy only.

  check.py --semif PROGRAM --models FOLDER --out FIGURES.json           references, decisions and generation timed
  check.py --semif PROGRAM --models FOLDER --full KEEP --out ...        full-size synthetic models (KEEP has full-*.json
                                                                        and vocab_qwen2.gguf), made in the models folder
Exit code 1 if a reference is missed.
"""
import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
ORACLE = ROOT / 'tests' / 'fixtures' / 'oracle'
TOLERANCE = 1e-3
FULL_TOLERANCE = 2e-2
# Only these are part of this tier's promise; the qwen35 models allow rounding to grow along the recurrence.
TOLERANCE_OF = {'qwen35': 2e-3}


class Failure(Exception):
    pass


def run(program, *arguments):
    start = time.monotonic()
    done = subprocess.run([program, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise Failure(f'semif {arguments[0]} ended with {done.returncode}: {done.stderr.strip()[-800:]}')
    return done.stdout, time.monotonic() - start


def logits(program, model, sequences, *more):
    with tempfile.NamedTemporaryFile('w', suffix='.json') as f:
        json.dump(sequences, f)
        f.flush()
        out, seconds = run(program, 'logits', '--gguf', model, '--tokens-file', f.name, *more)
    lines = [json.loads(line) for line in out.splitlines()]
    if len(lines) != len(sequences):
        raise Failure(f'{len(lines)} lines for {len(sequences)} sequences')
    return lines, seconds


def check_reference(program, models, path):
    """-> {worst, argmax_same, seconds}"""
    want = json.loads(path.read_text(encoding='utf-8'))
    rows = want.get('sequences') or want['prompts']
    labels = rows[0].get('label_ids')
    more = ['--full'] if labels is None else ['--labels', ','.join(map(str, labels)), '--top', '1']
    lines, seconds = logits(program, models / want['file'], [r['tokens'] for r in rows], *more)
    worst, same = 0.0, True
    for row, line in zip(rows, lines):
        expected = np.array(row['logits']['f64'] if labels is None else row['labels']['f64'])
        got = np.array(line['logits'] if labels is None else line['labels'], np.float64)
        difference = np.abs(got - expected)
        worst = max(worst, float(difference.max()) if np.isfinite(got).all() else float('inf'))
        best = row['argmax']['f64'] if 'argmax' in row else row['top20']['ids'][0]
        same = same and line['argmax'] == best
    tolerance = TOLERANCE_OF.get(want['arch'], TOLERANCE)
    return {'rows': len(rows), 'worst': worst, 'argmax_same': same, 'seconds': round(seconds, 2), 'ok': worst <= tolerance and same}


def check_greedy(program, models):
    want = json.loads((ORACLE / 'real-greedy.json').read_text(encoding='utf-8'))
    generation = want['generations'][0]
    expected = generation['greedy']['llama_f32']
    out, _ = run(program, 'generate', '--precision', 'exact', '--gguf', models / want['file'], '--tokens', ','.join(map(str, generation['tokens'])),
                 '--max-new', len(expected['tokens']), '--json')
    reply = json.loads(out)
    got = reply['tokens']
    at = next((i for i, t in enumerate(expected['tokens']) if i >= len(got) or got[i] != t), None)
    fine = at is None or (at < len(got) and expected['gap'][at] < 0.002)
    return {'first_difference': at, 'excused': fine and at is not None, 'ok': fine}


def crossed_rows():
    """Every state of the evaluation rows with every different question and options: many of these decisions are close."""
    lines = (ROOT / 'assets' / 'evaluation-rows.jsonl').read_text(encoding='utf-8').splitlines()
    given = [json.loads(line) for line in lines]
    asked = {json.dumps([row['question'], row['options']]): row for row in given}.values()
    given = {json.dumps(row['state']): row for row in given}.values()
    return [{'id': f'{s["id"]} / {q["id"]}', 'state': s['state'], 'question': q['question'], 'options': q['options']} for s in given for q in asked]


def check_tiers(program, models, name):
    """The other tiers on real weights: off from f64 on the reference's prompts, and the decisions that differ from the exact tier's."""
    want = json.loads((ORACLE / f'real-{name}.json').read_text(encoding='utf-8'))
    model, prompts = models / want['file'], want['prompts']
    labels = ','.join(map(str, prompts[0]['label_ids']))
    out, exact = {'ok': True}, None
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / 'rows.jsonl'
        rows.write_text(''.join(json.dumps(r) + '\n' for r in crossed_rows()), encoding='utf-8')
        for tier in ('exact', 'fast', 'tensor'):
            lines, _ = logits(program, model, [p['tokens'] for p in prompts], '--labels', labels, '--precision', tier)
            off = max(float(np.abs(np.array(line['labels']) - np.array(p['labels']['f64'])).max()) for p, line in zip(prompts, lines))
            results = Path(folder) / f'{tier}.jsonl'
            run(program, 'score', '--gguf', model, '--input', rows, '--output', results, '--precision', tier)
            got = [json.loads(line) for line in results.read_text(encoding='utf-8').splitlines()]
            tops = [max(range(len(r['option_logits'])), key=lambda i, r=r: r['option_logits'][i]) for r in got]
            exact = exact or (got, tops)
            differ, apart = [], []
            for r, top, e, exact_top in zip(got, tops, *exact):
                apart.append(np.array(r['option_logits'], np.float64) - np.array(e['option_logits'], np.float64))
                if top != exact_top:
                    best = sorted(e['option_logits'], reverse=True)
                    differ.append([r['id'], round(best[0] - best[1], 4)])
            apart = np.concatenate(apart)
            out[tier] = {'off_f64': off, 'rows': len(got), 'off_exact_max': float(np.abs(apart).max()),
                         'off_exact_rms': float(np.sqrt((apart ** 2).mean())), 'differ': len(differ), 'differing_rows_and_their_gap': differ}
            out['ok'] = out['ok'] and off <= {'exact': 1e-3, 'tensor': 2e-2}.get(tier, float('inf'))
    return out


def row(name, sentences):
    """A decision whose prompt grows with `sentences`."""
    facts = ' '.join(f'Parcel {i} left the depot at {i % 24}:{i * 7 % 60:02d} and arrived the next day.' for i in range(sentences))
    return {'id': name, 'state': facts + ' Parcel X has not left the depot.', 'question': 'Has parcel X been sent?',
            'options': [{'id': 'yes', 'description': 'It has been sent'}, {'id': 'no', 'description': 'It has not been sent'}]}


def time_decisions(program, model, repeats=9):
    """Median seconds of the forward pass and of the whole row, by prompt length; the first of each length warms up."""
    with tempfile.TemporaryDirectory() as folder:
        rows, results = Path(folder) / 'rows.jsonl', Path(folder) / 'out.jsonl'
        with open(rows, 'w', encoding='utf-8') as f:
            for sentences in (1, 16, 80):
                for i in range(repeats):
                    f.write(json.dumps(row(f'{sentences}-{i}', sentences)) + '\n')
        _, wall = run(program, 'score', '--gguf', model, '--input', rows, '--output', results)
        groups = {}
        for line in results.read_text(encoding='utf-8').splitlines():
            result = json.loads(line)
            groups.setdefault(result['input_tokens'], []).append((result['forward_seconds'], result['total_seconds']))
    return {'process_seconds': round(wall, 2), 'by_tokens': {
        tokens: {'forward_ms': round(1e3 * statistics.median(f for f, _ in times[1:]), 3),
                 'total_ms': round(1e3 * statistics.median(t for _, t in times[1:]), 3),
                 'fastest_forward_ms': round(1e3 * min(f for f, _ in times[1:]), 3)}
        for tokens, times in sorted(groups.items())}}


def time_generation(program, model, new=128):
    out, _ = run(program, 'generate', '--gguf', model, '--text', 'A short history of the parcel post:', '--max-new', new, '--ignore-eos', '--json')
    reply = json.loads(out)
    return {key: value for key, value in reply.items() if not isinstance(value, (list, str))}


def guarded(results, name, function, *arguments):
    try:
        results[name] = function(*arguments)
    except (Failure, OSError, KeyError, ValueError) as e:
        results[name] = {'ok': False, 'error': f'{type(e).__name__}: {e}'}
    print(name, json.dumps(results[name]), flush=True)


def full_size(program, models, keep, results):
    vocabulary = keep / 'vocab_qwen2.gguf'
    for path in sorted(keep.glob('full-*.json')):
        want = json.loads(path.read_text(encoding='utf-8'))
        model = models / want['file']
        start = time.monotonic()
        if not model.is_file():
            arguments = [{want['file']: str(model), 'QWEN2_VOCABULARY.gguf': str(vocabulary)}.get(a, a) for a in shlex.split(want['generate'])[1:]]
            subprocess.run([sys.executable, str(ROOT / 'tests' / 'tools' / 'synth_gguf.py'), *arguments], check=True, stdout=subprocess.DEVNULL)
            print(f'made {want["file"]} in {time.monotonic() - start:.0f} s', flush=True)
        def reference():
            lines, seconds = logits(program, model, [r['tokens'] for r in want['rows']], '--labels', ','.join(map(str, want['label_ids'])))
            out = {'seconds': round(seconds, 2)}
            for r, line in zip(want['rows'], lines):
                column = next(c for c in ('f64', 'llama_f32', 'np32', 'llama_q') if c in r['labels'])
                got, expected = np.array(line['labels'], np.float64), np.array(r['labels'][column])
                worst = float(np.abs(got - expected).max()) if np.isfinite(got).all() else float('inf')
                same = int(got.argmax()) == int(expected.argmax())
                out[f'{len(r["tokens"])} tokens against {column}'] = {'worst': worst, 'argmax_same': same}
                # llama.cpp's products of quantised activations round more than the tolerance; the best label is the same there too.
                out['ok'] = out.get('ok', True) and same and (column == 'llama_q' or worst <= FULL_TOLERANCE)
            return out
        guarded(results, want['model'], reference)
        guarded(results, want['model'] + ' decisions', time_decisions, program, model)
        guarded(results, want['model'] + ' generation', time_generation, program, model)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument('--semif', required=True)
    ap.add_argument('--models', type=Path, required=True)
    ap.add_argument('--full', type=Path, metavar='KEEP')
    ap.add_argument('--out', type=Path, required=True)
    a = ap.parse_args()
    results = {}
    if a.full:
        full_size(a.semif, a.models, a.full, results)
    else:
        for path in sorted([*ORACLE.glob('*-tiny-*.json'), *ORACLE.glob('real-smollm2.json'), *ORACLE.glob('real-qwen25*.json')]):
            guarded(results, path.stem, check_reference, a.semif, a.models, path)
        guarded(results, 'greedy', check_greedy, a.semif, a.models)
        for name in ('smollm2', 'qwen25coder05'):
            guarded(results, name + ' tiers', check_tiers, a.semif, a.models, name)
        for name in ('smollm2', 'qwen25coder05'):
            guarded(results, name + ' decisions', time_decisions, a.semif, a.models / f'{name}.gguf')
            guarded(results, name + ' generation', time_generation, a.semif, a.models / f'{name}.gguf')
    a.out.write_text(json.dumps(results, indent=1), encoding='utf-8')
    bad = [name for name, result in results.items() if not result.get('ok', True)]
    print(f'{len(results) - len(bad)} passed, {len(bad)} failed' + (': ' + ', '.join(bad) if bad else ''))
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
