// Numbers: the page's logits against float64 references, and against the native program.
import fs from 'node:fs';
import path from 'node:path';
import { execFileSync } from 'node:child_process';
import { Skip, check, equal, openPage } from './harness.mjs';

const ORACLE = path.resolve(import.meta.dirname, '../fixtures/oracle');
const TOLERANCE = 1e-3;
/** Rounding adds up along the recurrence of the linear-attention layers. */
const toleranceOf = (name) => (name.startsWith('qwen35') ? 2 : 1) * TOLERANCE;
/** The software adapter computes about 2 billion operations a second; longer sequences are compared natively. SEMIF_LONGEST, for a GPU, raises it. */
const LONGEST = Number(process.env.SEMIF_LONGEST ?? 100);
const TINY = ['qwen2-tiny-Q8_0', 'qwen2-tiny-linear', 'llama3-tiny-Q8_0', 'minicpm5-tiny-real', ...['real', 'lmstudio', 'unsloth', 'any'].map((mix) => `qwen35-tiny-${mix}`), ...['Q8_0', 'Q4_K', 'Q6_K', 'Q5_0', 'Q4_0', 'Q4_1', 'Q5_1', 'Q5_K', 'F16', 'BF16'].map((type) => `qwen3-tiny-${type}`)];

const read = (name) => JSON.parse(fs.readFileSync(path.join(ORACLE, `${name}.json`), 'utf8'));
const farthest = (found, wanted) => Math.max(...wanted.map((value, i) => Math.abs(value - found[i])));

export default function ({ browser, home, model, models }) {
  const tests = {};
  // One page for all of them: its kernels are compiled once. After a failure the next test gets a fresh one.
  let shared;
  const faults = [];
  const withPage = async (use) => {
    if (!shared || shared.isClosed()) {
      shared = await openPage(browser, `${home}?test`);
      shared.setDefaultTimeout(0);
      await shared.waitForFunction(() => window.semif, null, { timeout: 60_000 });
    }
    try {
      return await use(shared);
    } catch (error) {
      faults.push(...shared.faults);
      await shared.close();
      throw error;
    }
  };
  for (const name of TINY) {
    tests[`logits of ${name}`] = () => withPage(async (page) => {
      const oracle = read(name);
      const rows = oracle.sequences.filter((row) => row.len <= LONGEST);
      check(rows.length >= 4, 'the reference has fewer rows than expected');
      const labels = rows[0].logits.f64.map((_, id) => id);
      const found = await page.evaluate(async ([url, tokens, labels]) => {
        await window.semif.load(url, { precision: 'exact' });
        return window.semif.logits(tokens, labels);
      }, [model(oracle.file), rows.map((row) => row.tokens), labels]);
      const errors = rows.map((row, i) => farthest(found[i], row.logits.f64));
      check(errors.every((error) => error <= toleranceOf(name)), `max |logit - f64| by length: ${errors}`);
      return `max |logit - f64| ${Math.max(...errors).toExponential(1)}`;
    });
  }
  // One prompt of 63 tokens of SmolLM2 in every run; the model of half a gigabyte by name, or with everything on a GPU.
  for (const [name, title] of [['real-smollm2', 'a real prompt'], ['real-qwen25coder05', 'real prompts of Qwen2.5-Coder']]) {
    const oracle = read(name);
    const here = fs.existsSync(path.join(models, oracle.file));
    tests[`logits of ${title}, here and natively`] = async () => {
      if (!here) throw new Skip(`${oracle.file} is not in SEMIF_TEST_MODELS`);
      return withPage(compareReal);
    };
    const compareReal = async (page) => {
      const prompts = oracle.prompts.filter((prompt) => prompt.n_tokens <= LONGEST);
      check(prompts.length > 0, 'the reference has no prompt that is short enough');
      const { label_ids: labels } = prompts[0];
      prompts.forEach((prompt) => equal(prompt.label_ids, labels, 'labels'));
      const found = await page.evaluate(async ([url, tokens, labels]) => {
        await window.semif.load(url, { precision: 'exact' });
        return window.semif.logits(tokens, labels);
      }, [model(oracle.file), prompts.map((prompt) => prompt.tokens), labels]);
      const error = Math.max(...prompts.map((prompt, i) => farthest(found[i], prompt.labels.f64)));
      check(error <= TOLERANCE, `label logits are ${error} from f64`);
      const program = process.env.SEMIF_BIN;
      if (!program) return `max |logit - f64| ${error.toExponential(1)}; SEMIF_BIN is not set, so not compared natively`;
      const apart = prompts.map((prompt, i) => {
        const args = ['logits', '--gguf', path.join(models, oracle.file), '--tokens', prompt.tokens.join(','), '--labels', labels.join(',')];
        const native = JSON.parse(execFileSync(program, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] }));
        equal(native.labels.length, found[i].length, 'native labels');
        return farthest(found[i], native.labels);
      });
      check(Math.max(...apart) < TOLERANCE, `native and browser logits are ${apart} apart`);
      return `${prompts.length} of ${oracle.prompts.length}, max |logit - f64| ${error.toExponential(1)}, ${Math.max(...apart).toExponential(1)} from native`;
    };
  }
  tests['the page of the logits had no complaint'] = async () => {
    if (!shared) throw new Skip('no logits were compared');
    equal([...faults, ...(shared.isClosed() ? [] : shared.faults)], [], 'the browser complained');
    await shared.close();
  };
  return tests;
}
