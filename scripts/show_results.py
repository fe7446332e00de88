#!/usr/bin/env python3
"""Prints decided rows so that a person can read them.   show_results.py ROWS.jsonl RESULTS.jsonl"""
import json
import sys

BAR = 24


def read(path):
    with open(path, encoding='utf-8', newline='\n') as f:
        return [json.loads(line) for line in f if line.strip()]


def bar(share):
    eighths = round(share * BAR * 8)
    return '█' * (eighths // 8) + ('', '▏', '▎', '▍', '▌', '▋', '▊', '▉')[eighths % 8]


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    asked = {row['id']: row for row in read(sys.argv[1])}
    results = read(sys.argv[2])
    right = labelled = 0
    seconds = 0.0
    for result in results:
        row = asked[result['id']]
        print(f"\n{result['id']}: {row['question']}")
        if 'error' in result:
            print(f"  not decided: {result['error']}")
            continue
        best = max(result['probabilities'])
        for option, share in zip(row['options'], result['probabilities']):
            mark = '>' if share == best else ' '
            print(f"  {mark} {share:7.1%} {bar(share):<{BAR}} {option['id']}: {option['description']}")
        choice = result['option_ids'][result['probabilities'].index(best)]
        if 'label' in row:
            labelled += 1
            right += choice == row['label']
            if choice != row['label']:
                print(f"    (a person would say: {row['label']})")
        seconds += result['forward_seconds']
    decided = [r for r in results if 'probabilities' in r]
    if decided:
        model = decided[0]['model']
        print(f"\n{len(decided)} rows decided by {model.get('file') or model.get('source')}, {seconds / len(decided):.2f} s each in the forward pass", end='')
        print(f'; {right} of {labelled} as labelled' if labelled else '')


if __name__ == '__main__':
    main()
