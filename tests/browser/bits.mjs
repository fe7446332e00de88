// The same bits on every path, and what the worker does while a batch runs: through window.semif (docs/hook.md), as anybody may use it.
import { check, equal, openPage } from './harness.mjs';

/** SEMIF_BITS=full, for a GPU: every model, every path in every chunk size. */
const FULL = process.env.SEMIF_BITS === 'full';
const MODELS = FULL
  ? ['qwen2-tiny-Q8_0', 'minicpm5-tiny-real', 'llama3-tiny-Q8_0', 'qwen35-tiny-real', 'qwen35-tiny-lmstudio', 'qwen35-tiny-unsloth', ...['Q8_0', 'Q4_K', 'Q6_K', 'Q5_0', 'Q4_0', 'Q4_1', 'Q5_1', 'Q5_K', 'F16', 'BF16'].map((type) => `qwen3-tiny-${type}`)]
  : ['qwen3-tiny-Q4_K', 'qwen35-tiny-real'];

/** Runs in the page: everything for one model. Returns what it compared, in words; throws where a bit differs. */
async function everyPath({ url, full, precision }) {
  const { semif } = window;
  const labels = Array.from({ length: 20 }, (_, i) => 32 + i);
  const random = (seed) => {
    let state = (Math.imul(seed, 0x9e3779b1) | 1) >>> 0;
    return (n) => {
      state ^= state << 13; state >>>= 0;
      state ^= state >>> 17;
      state ^= state << 5; state >>>= 0;
      return (state >>> 4) % n;
    };
  };
  /** `count` prompts of 40 to 120 tokens that share exactly `prefix`. */
  const prompts = (seed, prefix, count) => {
    const next = random(seed);
    const start = Array.from({ length: prefix }, () => next(500));
    return Array.from({ length: count }, (_, i) => [...start, i, ...Array.from({ length: 3 + (i % 16 === 7 ? 70 : next(12)) }, () => next(500))]);
  };
  const bits = (logits) => Array.from(new Uint32Array(Float32Array.from(logits).buffer)).join();
  let readings = 0;
  const same = (found, wanted, words) => found.forEach((logits, i) => {
    if (wanted[i] === undefined) return;
    readings += 1;
    if (bits(logits) !== wanted[i]) throw new Error(`${words}, prompt ${i}: other bits than alone`);
  });
  const PREFIX = 37;
  const all = prompts(7, PREFIX, 64);
  /** The recurrence of these layers is slow on a software adapter. */
  const slow = !full && url.includes('qwen35');
  /** Prompts that are compared; the others are company. */
  const compared = full ? 64 : slow ? 8 : 21;
  const read = async (list, prefix, options) => {
    const { logits, prefixes } = await semif.read([{ prompts: list, prefix }], labels, options);
    return { logits: logits[0], reused: prefixes[0][1] };
  };
  const shuffled = (count, step) => Array.from({ length: count }, (_, i) => (i * step) % count);
  const pick = (from, order) => order.map((i) => from[i]);
  let wanted;
  for (const chunk of full ? [64, 16, 256, 1024] : slow ? [16] : [64, 16]) {
    const model = await semif.load(url, { chunk, precision });
    if (model.precision !== precision) throw new Error(`loaded in ${model.precision} precision`);
    wanted ??= (await semif.logits(all.slice(0, compared), labels)).map(bits);
    const words = (path) => `chunks of ${chunk}, ${path}`;
    const shared = async (order, reused, path) => {
      const found = await read(pick(all, order), PREFIX);
      if (reused !== undefined && found.reused !== reused) throw new Error(`${words(path)}: ${found.reused} tokens were reused`);
      same(found.logits, pick(wanted, order), words(path));
    };
    await shared(shuffled(21, 8), 0, 'a batch of 21, shuffled');
    await shared([20, 3], PREFIX, 'a batch of 2');
    for (const i of full ? [0, 7, 63] : [7]) await shared([i], PREFIX, 'serially after a cache hit');
    if (full || chunk === 64) await shared(shuffled(64, 27), PREFIX, 'a batch of 64, shuffled');
    if (full || chunk === 16) {
      same((await read(all.slice(0, full ? 21 : 5), 0)).logits, wanted, words('without a prefix'));
      for (const prefix of full ? [1, 31, 32, 33] : [31, 33]) same((await read(all.slice(0, 2), prefix)).logits, wanted, words(`a prefix of ${prefix}`));
      // Several states in one request.
      const others = prompts(11, 20, 3);
      const both = await semif.read([{ prompts: all.slice(0, 3), prefix: PREFIX }, { prompts: others, prefix: 20 }], labels);
      same(both.logits[0], wanted, words('two states at once'));
      same(both.logits[1], (await semif.logits(others, labels)).map(bits), words('two states at once, the other'));
      const { bytes } = await semif.cache(0);
      if (bytes !== 0) throw new Error(`${bytes} bytes stay after the cache was given back`);
      await semif.cache(64e6);
      await shared(shuffled(5, 2), 0, 'after eviction');
      const many = prompts(13, 8, full ? 100 : slow ? 10 : 20);
      for (let i = 0; i < many.length; i += 5) await read(many.slice(i, i + 5), 8);
      await shared(shuffled(5, 3), PREFIX, 'after many others');
      await semif.cache(0);
      await semif.cache(64e6);
      await shared(shuffled(5, 3), 0, 'evicted again and refilled');
    }
  }
  return `${readings} readings`;
}

/** Text: questions on one state, orderings, states that grow. */
async function everyText({ url }) {
  const { semif } = window;
  await semif.load(url);
  const row = (id, state, question, options) => ({ id, state, question, options: Array.from({ length: options }, (_, i) => ({ id: `o${i}`, description: `${i}` })) });
  const bits = (decision) => Array.from(new Uint32Array(Float32Array.from(JSON.parse(decision.row).option_logits).buffer)).join();
  const expect = (found, wanted, words) => { if (JSON.stringify(found) !== JSON.stringify(wanted)) throw new Error(`${words}: ${JSON.stringify(found)}, not ${JSON.stringify(wanted)}`); };
  const state = 'Paid twice (in May);';
  const rows = [row('a', state, 'Why?', 2), row('b', 'Other }', 'Why?', 2), row('c', state, '"Now"?', 3)];
  const alone = [];
  for (const one of rows) alone.push(await semif.decide(one));
  const heard = [];
  const together = await semif.decideAll(rows, { onEvent: (event) => { if (event.type === 'decided') heard.push(event.index); } });
  expect(together.map(bits), alone.map(bits), 'rows together');
  expect(together.map((one) => JSON.parse(one.row).serving_config.mode), ['shared', 'direct', 'shared'], 'how they were read');
  expect(heard.sort(), [0, 1, 2], 'rows heard of');
  // Every rotation is the row that has its options in that order.
  const rotated = await semif.decide(rows[2], { orderings: 'rotations' });
  const orders = JSON.parse(rotated.row).orderings;
  expect(orders.length, 3, 'orders');
  for (const order of orders) {
    const options = order.order.map((id) => rows[2].options.find((option) => option.id === id));
    const direct = JSON.parse((await semif.decide({ ...rows[2], options })).row);
    expect(order.option_logits, direct.option_logits, `order ${order.order}`);
  }
  expect([rotated.combined.read, bits(rotated)], [3, bits(alone[2])], 'the row itself');
  // A state that is open, grows and forks.
  const question = (one) => ({ id: one.id, question: one.question, options: one.options });
  const open = await semif.open(state);
  const asked = () => semif.ask(open.id, [question(rows[0]), question(rows[2])]);
  expect((await asked()).map(bits), [bits(alone[0]), bits(alone[2])], 'asked on an open state');
  const fork = await semif.fork(open.id);
  const grown = await semif.append(open.id, ' And in June.');
  if (grown.reused < 32) throw new Error(`appending read the whole state again: ${JSON.stringify(grown)}`);
  const fresh = await semif.decide(row('a', `${state} And in June.`, 'Why?', 2));
  expect((await asked()).map(bits)[0], bits(fresh), 'asked after it grew');
  expect(bits((await semif.ask(fork.id, [question(rows[0])]))[0]), bits(alone[0]), 'the fork is as it was');
  await semif.drop(open.id);
  await semif.drop(fork.id);
  const refused = await asked().then(() => 'answered', (error) => error.name);
  expect(refused, 'Input', 'a state that was let go');
  return `${orders.length} orders, states of ${open.tokens} and ${grown.tokens} tokens`;
}

/** A batch, clicks in between, a cancel. */
async function clicksInBetween({ url, full }) {
  const { semif } = window;
  // A GPU is done with little before anybody can click.
  const room = full ? 2e9 : 64e6;
  await semif.load(url, { chunk: 16, cacheBytes: room });
  const labels = [32, 33, 34];
  const text = (i) => Array.from({ length: 60 + (i % 5) }, (_, k) => (i * 31 + k * 7 + (k < 30 ? 0 : i)) % 500);
  const groups = Array.from({ length: full ? 240 : 12 }, (_, g) => ({ prompts: [0, 1, 2].map((q) => [...text(g), q, q + 9, 4]), prefix: 60 }));
  const bits = (logits) => Array.from(new Uint32Array(Float32Array.from(logits).buffer)).join();
  const wanted = (await semif.logits(groups.flatMap((group) => group.prompts), labels)).map(bits);
  const click = [9, 8, 7, 6, 5];
  const [clicked] = (await semif.logits([click], labels)).map(bits);
  const log = [];
  const batch = semif.read(groups, labels, { batch: true, onEvent: (event) => log.push(event.done) }).then((found) => { log.push('batch'); return found; });
  for (let i = 0; i < 4; i += 1) {
    const [found] = await semif.logits([click], labels);
    if (bits(found) !== clicked) throw new Error('a click during a batch has other bits');
    log.push('click');
  }
  const found = await batch;
  const before = log.indexOf('batch');
  if (log.filter((what, i) => what === 'click' && i < before).length !== 4) throw new Error(`clicks waited for the batch: ${log}`);
  found.logits.flat().forEach((logits, i) => { if (bits(logits) !== wanted[i]) throw new Error(`prompt ${i} of a batch with clicks in between`); });
  // Stopped in the middle, and asked again.
  await semif.cache(0);
  await semif.cache(room);
  const stop = new AbortController();
  const stopped = semif.read(groups, labels, { signal: stop.signal, onEvent: () => stop.abort() });
  const name = await stopped.then(() => 'finished', (error) => error.name);
  if (name !== 'Cancelled') throw new Error(`a stopped batch: ${name}`);
  const again = await semif.read(groups, labels, { batch: true });
  again.logits.flat().forEach((logits, i) => { if (bits(logits) !== wanted[i]) throw new Error(`prompt ${i} after a stop`); });
  if (!again.prefixes.some(([, reused]) => reused > 0)) throw new Error('a stop lost every prefix');
  return `${log.join(' ')}`;
}

/** Clicks that never end, and a batch. */
async function clicksWithoutEnd({ url }) {
  const { semif } = window;
  await semif.load(url, { chunk: 16 });
  const labels = [32, 33];
  const prompts = [0, 1, 2, 3].map((i) => [i, 5, 6, 7]);
  const wanted = await semif.logits(prompts, labels);
  const [MOST, AT_ONCE] = [300, 24];
  let [clicks, before, over] = [0, 0, false];
  // While some are answered and asked again, others wait.
  const click = async () => {
    while (!over && clicks < MOST) {
      await semif.logits([[9, 8, 7]], labels);
      clicks += 1;
    }
  };
  const clicking = Promise.all(Array.from({ length: AT_ONCE }, click));
  // After the clicks that wait already.
  const batch = semif.read([{ prompts, prefix: 0 }], labels, { batch: true }).then((found) => { [before, over] = [clicks, true]; return found; });
  await clicking;
  const found = await batch;
  if (before >= MOST) throw new Error(`a batch had to wait for the end of ${before} clicks`);
  if (before < 8) throw new Error(`the batch went before the clicks: ${before}`);
  if (JSON.stringify(found.logits[0]) !== JSON.stringify(wanted)) throw new Error('other logits than alone');
  return `done after ${before} clicks`;
}

/** What DeltaNet layers carry, and keys, values and convolution rows, cut behind every token: the same bits as in one piece. */
async function everyCut({ url, full }) {
  const { semif } = window;
  await semif.load(url, { precision: 'exact' });
  const labels = Array.from({ length: 100 }, (_, i) => i);
  // Over the end of a page of 32. Natively it is 71 tokens.
  const prompt = Array.from({ length: full ? 71 : 37 }, (_, i) => 3 + ((i * 7919) % 480));
  const bits = (logits) => Array.from(new Uint32Array(Float32Array.from(logits).buffer)).join();
  const wanted = bits((await semif.logits([prompt], labels))[0]);
  for (let cut = 1; cut < prompt.length; cut += 1) {
    await semif.cache(0);
    await semif.cache(64e6);
    const { logits, prefixes } = await semif.read([{ prompts: [prompt], prefix: cut }], labels);
    if (prefixes[0][0] !== cut || prefixes[0][1] !== 0) throw new Error(`cut behind ${cut} tokens: ${prefixes[0]} in the prefix`);
    if (bits(logits[0][0]) !== wanted) throw new Error(`cut behind ${cut} tokens: other bits`);
  }
  return `${prompt.length - 1} cuts`;
}

/** The step form against prefill: what 300 steps arrive at is what one prefill of all the tokens gives. */
async function stepsAgainstPrefill({ url }) {
  const { semif } = window;
  await semif.load(url, { precision: 'exact', maxTokens: 512 });
  const prompt = Array.from({ length: 13 }, (_, i) => 3 + ((i * 7919) % 480));
  const none = await semif.complete(prompt, { limit: 0 }).then(() => 'an answer', (error) => String(error));
  if (!none.includes('ask for 1 at least')) throw new Error(`a limit of 0: ${none}`);
  const { tokens, logits } = await semif.complete(prompt, { limit: 300 });
  if (tokens.length !== 300) throw new Error(`${tokens.length} tokens`);
  const labels = Array.from({ length: Math.min(logits.length, 500) }, (_, i) => i);
  const [prefill] = await semif.logits([[...prompt, ...tokens.slice(0, -1)]], labels);
  const off = Math.max(...labels.map((id) => Math.abs(prefill[id] - logits[id])));
  if (!(off <= 2e-3)) throw new Error(`${off} from prefill`);
  const largest = logits.reduce((best, value, id) => (value > logits[best] ? id : best), 0);
  if (largest !== tokens[299]) throw new Error(`the last token is ${tokens[299]}, the largest logit is that of ${largest}`);
  return `${off.toExponential(1)} from prefill`;
}

export default function ({ browser, home, model }) {
  const withPage = async (use, argument) => {
    const page = await openPage(browser, home);
    page.setDefaultTimeout(0);
    await page.waitForFunction(() => window.semif, null, { timeout: 60_000 });
    try {
      const words = await page.evaluate(use, argument);
      equal(page.faults, [], 'the browser complained');
      check(words.length > 0, 'nothing was compared');
      return words;
    } finally {
      await page.close();
    }
  };
  const tests = {};
  for (const name of MODELS) {
    for (const precision of ['exact', ...(FULL ? ['fast'] : [])]) {
      tests[`bits on every path of ${name}, ${precision}`] = () => withPage(everyPath, { url: model(`${name}.gguf`), full: FULL, precision });
    }
  }
  tests['a batch goes on while clicks never end'] = () => withPage(clicksWithoutEnd, { url: model('qwen3-tiny-Q8_0.gguf') });
  for (const name of ['qwen3-tiny-Q8_0', 'qwen35-tiny-real']) {
    tests[`bits of questions, orders and open states, ${name}`] = () => withPage(everyText, { url: model(`${name}.gguf`) });
    tests[`clicks are answered while a batch runs, ${name}`] = () => withPage(clicksInBetween, { url: model(`${name}.gguf`), full: FULL });
  }
  tests['state cut behind every token, qwen35-tiny-real'] = () => withPage(everyCut, { url: model('qwen35-tiny-real.gguf'), full: FULL });
  for (const name of ['qwen35-tiny-real', ...(FULL ? ['qwen35-tiny-lmstudio', 'qwen35-tiny-unsloth', 'minicpm5-tiny-real'] : [])]) {
    tests[`steps against prefill, ${name}`] = () => withPage(stepsAgainstPrefill, { url: model(`${name}.gguf`) });
  }
  return tests;
}
