// The page of a run. User input, texts and model output come from the JSON of #data and are shown as
// text only (textContent), never as markup.
'use strict';

const $ = id => document.getElementById(id);
const data = JSON.parse($('data').textContent);
const run = data.runs[data.runs.length - 1];
for (const r of data.runs) { // columns of its log
  r.starts = r.lines.filter(line => line.command !== undefined);
  r.evaluations = r.lines.filter(line => line.val_loss !== undefined);
  r.best = r.evaluations.filter(line => line.best === true).pop() || {};
  r.test = r.lines.filter(line => line.test_loss !== undefined).pop() || {};
}
const colors = ['#2a8fd8', '#e69f00', '#00a878', '#cc79a7', '#d55e00', '#8a7ff0', '#8f8f2a', '#c0466e'];
const units = {loss: 'loss, nats per token', ppl: 'perplexity per token', bpb: 'bits per byte',
               word_ppl: 'perplexity per word', pseudo_ppl: 'pseudo-perplexity'};

// Elements with attributes and children; strings become text.
const maker = namespace => (name, attributes = {}, ...children) => {
  const element = document.createElementNS(`http://www.w3.org/${namespace}`, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};
const make = maker('1999/xhtml'), svg = maker('2000/svg');

const isNumber = value => typeof value === 'number' && isFinite(value);

function show(value, digits = 4) {
  if (!isNumber(value)) return '–';
  const size = Math.abs(value);
  if (size >= 1e4 || Number.isInteger(value)) return Math.round(value).toLocaleString('en');
  return size < 1e-3 && value !== 0 ? value.toExponential(2) : value.toPrecision(digits + 1);
}

function duration(seconds) {
  if (!isNumber(seconds)) return '–';
  const s = Math.round(seconds), two = n => String(n).padStart(2, '0');
  if (s < 60) return seconds.toFixed(1) + ' s';
  return s < 3600 ? `${Math.floor(s / 60)}:${two(s % 60)} min`
                  : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)} h`;
}

const isResult = key => /^(val|test)_(?!(id|ms|tokens)$)/.test(key);
const row = (name, ...values) => make('tr', {}, make('th', {scope: 'row'}, name), ...values);
const cell = value => make('td', {}, String(value));
const numberCell = value => make('td', {class: 'number'}, show(value));

// ---- settings and results -------------------------------------------------------------------

function showSetting() {
  const start = run.starts[run.starts.length - 1] || {}, last = list => list[list.length - 1];
  const steps = run.steps, speeds = steps.tokens_per_s.filter(isNumber).sort((a, b) => a - b);
  $('name').textContent = document.title = data.runs.map(r => r.name).join(', ');
  $('summary').textContent = start.model || '';
  $('version').textContent = `fastformer.c ${data.version}`.trim();
  if (!steps.step.length) return;
  for (const key of ['model', 'window_sizes', 'data', 'plan', 'processor', 'products', 'memory', 'version'])
    if (typeof start[key] === 'string') $('facts').append(row(key.replace('_', ' '), cell(start[key])));
  $('facts').append(row('trained', cell(`${show(last(steps.step))} steps, ${show(last(steps.epoch), 3)} epochs, ` +
                                        duration(last(steps.seconds)))));
  if (speeds.length)
    $('facts').append(row('speed', cell(`${show(Math.round(speeds[(speeds.length - 1) >> 1]))} tokens/s, the median of the steps`)));
  $('commands').textContent = data.runs.flatMap(r => r.starts).map(s => s.command).join('\n');
  for (const [name, value] of Object.entries(start.options || {}))
    if (value !== null) $('options').append(row(name, cell(value)));
  $('setting').hidden = false;
}

function resultsOf(table, r, named) {
  const {best, test} = r;
  const names = new Set([...Object.keys(best), ...Object.keys(test)].filter(isResult).map(key => key.replace(/^(val|test)_/, '')));
  if (!names.size) return;
  table.append(make('tr', {}, make('th', {scope: 'col'}, named ? r.name : ''),
    make('th', {scope: 'col'}, 'validation' + (isNumber(best.step) ? `, best: step ${show(best.step)}` : '')),
    make('th', {scope: 'col'}, 'test')));
  for (const name of names)
    table.append(row(units[name] || name, numberCell(best['val_' + name]), numberCell(test['test_' + name])));
  $('result').hidden = false;
}

// ---- curves -------------------------------------------------------------------------------------

// The points of a column: of a run's steps, and of its evaluations.
const stepSeries = (r, key) =>
  r.steps.step.map((step, i) => ({step, seconds: r.steps.seconds[i], y: r.steps[key][i]})).filter(p => isNumber(p.y));
const evaluationSeries = (r, key) =>
  r.evaluations.map(e => ({step: e.step, seconds: e.seconds, y: e[key]})).filter(p => isNumber(p.y) && isNumber(p.step));

function charts() {
  const list = [], runs = data.runs, many = runs.length > 1;
  const add = (title, parts) => {
    const lines = parts.flatMap(({points, label, bold}) => runs.map((r, i) => ({
      points: points(r), color: colors[i % colors.length], bold, label: many ? `${r.name}${label ? ' ' + label : ''}` : label || title,
    }))).filter(line => line.points.length);
    if (lines.length) list.push({title, lines});
  };
  add('Loss, nats per token', [{points: r => stepSeries(r, 'loss'), label: 'training'},
                               {points: r => evaluationSeries(r, 'val_loss'), label: 'validation', bold: true}]);
  const keys = new Set(runs.flatMap(r => r.evaluations.flatMap(Object.keys)));
  for (const key of keys)
    if (isResult(key) && key !== 'val_loss')
      add('Validation: ' + (units[key.slice(4)] || key.slice(4)), [{points: r => evaluationSeries(r, key), bold: true}]);
  add('Learning rate', [{points: r => stepSeries(r, 'lr')}]);
  add('Gradient norm', [{points: r => stepSeries(r, 'grad_norm')}]);
  add('Tokens per second', [{points: r => stepSeries(r, 'tokens_per_s')}]);
  return list;
}

// Round numbers within a range; on a logarithmic scale 1, 2 and 5 times powers of ten.
function ticks(low, high, log, count) {
  const found = [];
  if (log) {
    const few = Math.log10(high / low) > 2;
    for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++)
      for (const digit of few ? [1] : [1, 2, 5]) found.push(digit * 10 ** power);
    const seen = found.filter(tick => tick >= low && tick <= high);
    if (seen.length > 1) return seen;
    found.length = 0;
  }
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= rough);
  // The limit ends the loop where i is too large for i + 1 to differ.
  for (let i = Math.ceil(low / step); i * step <= high && found.length < 50; i++) found.push(i * step);
  return found;
}

const compact = value => Math.abs(value) >= 1e4 || (value !== 0 && Math.abs(value) < 1e-3)
  ? value.toExponential(1).replace('.0', '').replace('e+', 'e') : String(+value.toPrecision(4));

// The range of a chart, without the first fiftieth of each line: a steep start would flatten the rest.
function rangeOf(lines, x, log) {
  const all = lines.flatMap(line => line.points.slice(Math.floor(line.points.length / 50))), xs = all.map(p => p[x]).filter(v => log.x ? v > 0 : isNumber(v));
  const ys = all.map(p => p.y).filter(v => !log.y || v > 0);
  const bounds = list => list.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
  const [left, right] = bounds(xs), [low, high] = bounds(ys), margin = (high - low) * 0.04 || Math.abs(high) * 0.1 || 1;
  return {left: log.x ? left : 0, right: right || 1, low: log.y ? low / 1.05 : low - margin, high: log.y ? high * 1.05 : high + margin};
}

// Draws a chart into a figure; figure.showAt() then shows the values at a position.
function draw(figure, chart, x, log) {
  const old = figure.querySelector('svg'), width = Math.max(figure.clientWidth, 240), height = 240;
  const range = rangeOf(chart.lines, x, log), inner = {left: 52, right: width - 12, top: 8, bottom: height - 24};
  const place = (v, low, high, from, to, l) => l ? from + (to - from) * Math.log(v / low) / Math.log(high / low || 2)
                                                 : from + (to - from) * (v - low) / (high - low || 1);
  const px = v => place(v, range.left, range.right, inner.left, inner.right, log.x);
  const py = v => Math.max(-1e3, place(v, range.low, range.high, inner.bottom, inner.top, log.y));
  const image = svg('svg', {viewBox: `0 0 ${width} ${height}`, 'aria-hidden': 'true'});
  for (const v of ticks(range.low, range.high, log.y, 5)) {
    image.append(svg('line', {class: 'grid', x1: inner.left, x2: inner.right, y1: py(v), y2: py(v)}));
    image.append(svg('text', {x: inner.left - 5, y: py(v) + 4, 'text-anchor': 'end'}, compact(v)));
  }
  for (const v of ticks(range.left, range.right, log.x, width / 90))
    image.append(svg('text', {x: Math.min(px(v), width - 16), y: height - 7, 'text-anchor': 'middle'}, x === 'seconds' ? duration(v) : compact(v)));
  image.append(svg('line', {class: 'grid', x1: inner.left, x2: inner.right, y1: inner.bottom, y2: inner.bottom}));
  const clip = svg('svg', {x: inner.left, y: inner.top, width: inner.right - inner.left, height: inner.bottom - inner.top,
                           viewBox: `${inner.left} ${inner.top} ${inner.right - inner.left} ${inner.bottom - inner.top}`});
  for (const line of chart.lines) {
    const points = line.points.filter(p => isNumber(p[x]) && (!log.x || p[x] > 0) && (!log.y || p.y > 0));
    const thin = !line.bold && chart.lines.some(other => other.bold);
    clip.append(svg('polyline', {points: points.map(p => `${px(p[x]).toFixed(1)},${py(p.y).toFixed(1)}`).join(' '), stroke: line.color,
                                 'stroke-width': line.bold ? 2.2 : 1.3, 'stroke-opacity': thin ? 0.55 : 1}));
    if (line.bold && points.length < 60)
      for (const p of points) clip.append(svg('circle', {cx: px(p[x]), cy: py(p.y), r: 2.6, fill: line.color}));
  }
  const cursor = svg('line', {class: 'cursor', y1: inner.top, y2: inner.bottom, x1: -9, x2: -9});
  image.append(clip, cursor);
  old.replaceWith(image);
  // Shows the point of each line nearest to a position between 0 and 1.
  figure.showAt = fraction => {
    const at = log.x ? range.left * (range.right / range.left) ** fraction : range.left + fraction * (range.right - range.left);
    const nearest = chart.lines.map(line => [line, line.points.reduce((a, b) => Math.abs(b[x] - at) < Math.abs(a[x] - at) ? b : a)]);
    const [, point] = nearest.reduce((a, b) => Math.abs(b[1][x] - at) < Math.abs(a[1][x] - at) ? b : a);
    cursor.setAttribute('x1', px(point[x]));
    cursor.setAttribute('x2', px(point[x]));
    figure.querySelector('output').textContent = `${x === 'seconds' ? duration(point[x]) : x + ' ' + show(point[x], 3)}: ` +
      nearest.map(([line, p]) => (chart.lines.length > 1 ? line.label + ' ' : '') + show(p.y)).join(', ');
  };
  image.onpointermove = event => {
    const box = image.getBoundingClientRect(), left = box.left + inner.left, full = inner.right - inner.left;
    figure.showAt(Math.min(1, Math.max(0, (event.clientX - left) / full)));
  };
}

function addChart(chart) {
  const ends = chart.lines.map(line => `${line.label} from ${show(line.points[0].y)} to ${show(line.points[line.points.length - 1].y)}`);
  const figure = make('figure', {tabindex: '0', 'aria-label': `${chart.title}: ${ends.join('; ')}. Arrow keys show values.`},
                      make('figcaption', {}, chart.title), svg('svg', {}), make('output', {}));
  let place = 1;
  figure.onkeydown = event => {
    const move = {ArrowLeft: -0.02, ArrowRight: 0.02, Home: -1, End: 1}[event.key];
    if (!move) return;
    event.preventDefault();
    figure.showAt(place = Math.min(1, Math.max(0, place + move)));
  };
  $('charts').append(figure);
  return {figure, chart};
}

function showCurves() {
  const drawn = charts().map(addChart), redraw = () => {
    for (const {figure, chart} of drawn) draw(figure, chart, $('x').value, {x: $('log-x').checked, y: $('log-y').checked});
  };
  $('curves').hidden = !drawn.length;
  for (const id of ['x', 'log-x', 'log-y']) $(id).onchange = redraw;
  if (data.runs.length > 1)
    data.runs.forEach((r, i) => {
      const key = make('span', {class: 'key'});
      key.style.background = colors[i % colors.length];
      $('legend').append(key, r.name);
    });
  else if (run.evaluations.length) $('legend').textContent = 'Thin: training. Bold: validation.';
  let width = 0;
  new ResizeObserver(() => {
    if (width !== $('charts').clientWidth) redraw();
    width = $('charts').clientWidth;
  }).observe($('charts'));
}

// ---- the worker that runs the model (dev/page/wasm.c) --------------------------------------------
// Its source is the text of this function. It receives {files} once, then orders. It answers with the
// tokens it read and wrote, then {end}, or with {error}; the next order then starts a new session.
function worker() {
  let files, session, lib, order = 0, errors = '';
  const decoder = new TextDecoder(), bytes = (at, size) => new Uint8Array(lib.memory.buffer, at, size);
  const view = () => new DataView(lib.memory.buffer);
  const jsonAt = at => JSON.parse(decoder.decode(bytes(at, bytes(0).indexOf(0, at) - at)));

  // Imports of the decoder: functions that its build leaves out (absent.txt), and those of WASI that
  // print and exit. All other functions of WASI return ENOSYS.
  const known = {
    stop_requested: () => 0, ranks_size: () => 1, ranks_on_machine: () => 1, file_number: () => -1,
    madvise: () => 0, stop_interrupts() {}, threads_settle() {}, fd_prestat_get: () => 8,
    fd_write(fd, vectors, count, out) {
      let size = 0;
      for (let i = 0; i < count; i++) {
        const length = view().getUint32(vectors + 8 * i + 4, true);
        errors += decoder.decode(bytes(view().getUint32(vectors + 8 * i, true), length));
        size += length;
      }
      view().setUint32(out, size, true);
      return 0;
    },
    proc_exit() { throw new Error('the decoder ended'); },
  };
  function put(data) { // copies to new memory of the decoder
    const at = lib.session_allocate(data.length + 1);
    bytes(at, data.length).set(data);
    return at;
  }

  async function open() {
    if (session) return;
    const packed = new Blob([files[0].data]).stream().pipeThrough(new DecompressionStream('gzip'));
    const module = await WebAssembly.compile(await new Response(packed).arrayBuffer()), imports = {};
    for (const {module: from, name} of WebAssembly.Module.imports(module))
      (imports[from] = imports[from] || {})[name] =
        known[name] || (() => { if (from === 'env') throw new Error(`${name}: is not in the page`); return 52; });
    lib = (await WebAssembly.instantiate(module, imports)).exports;
    lib._initialize();
    for (const {name, data} of files.slice(1)) lib.session_add_file(put(new TextEncoder().encode(name)), put(data), data.length);
    session = lib.session_open();
    postMessage({about: jsonAt(lib.session_about(session))});
  }

  // Reads or writes one token; the layout is ShownToken in wasm.c.
  function next() {
    const at = lib.session_next(session), v = view();
    return {token: v.getInt32(at, true), loss: v.getFloat32(at + 4, true), joined: v.getInt32(at + 8, true),
            drawn: v.getInt32(at + 12, true), ended: v.getInt32(at + 16, true),
            bytes: bytes(v.getUint32(at + 24, true), v.getInt32(at + 20, true)).slice()};
  }

  // Writes tokens, with short pauses in which messages arrive; a new order changes `order`.
  async function write(count, mine) {
    let left = count, start = performance.now(), written = 0;
    while (left > 0 && mine === order) {
      const tokens = [], pause = performance.now() + 40;
      while (left > 0 && performance.now() < pause) {
        const token = next();
        tokens.push(token);
        if (token.drawn) { left--; written++; } else start = performance.now();
        if (token.ended) left = 0;
      }
      postMessage({tokens, written, seconds: (performance.now() - start) / 1000});
      await new Promise(done => setTimeout(done));
    }
  }

  async function obey(message, mine) {
    errors = '';
    await open();
    if (message.begin !== undefined) {
      const text = new TextEncoder().encode(message.begin);
      const count = lib.session_begin(session, put(text), text.length, message.temperature, message.topP, message.seed);
      postMessage({guesses: jsonAt(lib.session_guesses(session))});
      if (!message.count) postMessage({tokens: Array.from({length: count}, next)});
    }
    if (message.count) await write(message.count, mine);
    if (message.show !== undefined) postMessage({attention: jsonAt(lib.session_attention(session, message.show)), token: message.show});
    else postMessage({end: true});
  }

  onmessage = ({data: message}) => {
    if (message.files) files = message.files;
    else if (message.show === undefined || session) // showing attention does not stop the writing
      obey(message, message.show === undefined ? ++order : order).catch(error => {
        session = undefined;
        postMessage({error: errors.trim() || String(error.message || error)});
      });
  };
}

// ---- the model and its text box ----------------------------------------------------------------

function describeFormat({format, loss, rounded_loss: rounded}) {
  const cost = rounded - loss;
  return (format === 'float32' ? 'Weights in float32, exact.' :
    `Weights in ${format}, with a scale for each row` + (isNumber(loss) && isNumber(rounded)
      ? `: validation loss ${rounded.toFixed(4)} instead of ${loss.toFixed(4)} (${cost < 0 ? '' : '+'}${cost.toFixed(5)}).`
      : '; the loss that rounding costs is measured at the end of the run.')) + ' It runs in this page, on this device.';
}

// The files in the page: one line each, with the name and the bytes in base64.
const readFiles = () => $('files').textContent.trim().split('\n').map(line => {
  const [name, text] = line.split(' ');
  return {name, data: Uint8Array.from(atob(text), c => c.charCodeAt(0))};
});

// The color of a loss in nats: transparent at 0, strongest from 8 on.
const shade = loss => `rgba(230, 110, 0, ${(0.65 * Math.min(Math.max(loss, 0), 8) / 8).toFixed(3)})`;

// The color of an attention weight, given as a fraction of the largest.
const blue = share => share > 0 ? `rgba(0, 130, 220, ${(0.15 + 0.85 * share).toFixed(3)})` : 'transparent';

const percent = share => `${(100 * share).toFixed(1)}%`;

function showModel(model) {
  $('model').hidden = false;
  $('form').hidden = Boolean(model.obstacle);
  $('format').textContent = model.obstacle ? 'The model is not in this page. ' + model.obstacle : describeFormat(model);
  if (model.obstacle) return;
  const engine = new Worker(URL.createObjectURL(new Blob([`'use strict';(${worker})()`], {type: 'text/javascript'})));
  engine.postMessage({files: readFiles()});
  $('files').textContent = '';
  const text = new TextDecoder('utf-8', {ignoreBOM: true}), elements = [], tokens = [];
  let about = {task: 'language'}, chosen = -1, given = 0, picked = 0;

  const order = message => {
    engine.postMessage(message);
    $('go').disabled = $('more').disabled = true;
    $('stop').disabled = false;
    $('status').textContent = 'Working …';
  };
  const rest = () => {
    $('go').disabled = false;
    $('stop').disabled = true;
    $('more').disabled = !tokens.length;
  };
  const number = id => Number($(id).value), writes = () => about.task === 'language';
  const count = () => Math.min(1e5, Math.max(0, Math.round(number('count'))));

  // Shows a token: line breaks are visible, and a dot marks a part of a character.
  function addToken(token) {
    const element = make('span', {tabindex: tokens.length ? '-1' : '0', role: 'button'}), i = tokens.length;
    for (let j = 1; j <= token.joined; j++) elements[i - j].textContent = '\u00b7';
    token.text = token.ended ? '' : token.joined ? new TextDecoder().decode(token.bytes) : text.decode(token.bytes, {stream: true});
    element.textContent = token.text.replace(/\n/g, '\u21b5\n') || (token.ended || (i < 1 && !token.bytes.length) ? '\u25a0' : '\u00b7');
    if (!token.drawn) { element.className = 'given'; given++; }
    if (isNumber(token.loss)) element.style.backgroundColor = shade(token.loss);
    element.title = isNumber(token.loss) ? `loss ${token.loss.toFixed(3)}` : '';
    element.onclick = () => choose(i);
    elements.push(element);
    tokens.push(token);
    return element;
  }

  function choose(i) {
    if (!elements[i]) return;
    if (elements[chosen]) elements[chosen].removeAttribute('aria-current');
    chosen = i;
    elements.forEach((element, j) => { element.tabIndex = j === i ? 0 : -1; });
    elements[i].setAttribute('aria-current', 'true');
    elements[i].focus();
    const token = tokens[i];
    $('token').replaceChildren(make('p', {}, `Token ${i}: number ${token.token}, ${JSON.stringify(token.text)}` +
      (isNumber(token.loss) ? `, loss ${token.loss.toFixed(4)} (probability ${show(Math.exp(-token.loss))})` : ', which was not predicted')));
    engine.postMessage({show: i});
  }

  // Shows the attention weights of a head: the tokens are marked, those of its window underlined.
  function pick(heads, number) {
    picked = number;
    const {weights, name, first} = heads[number], largest = Math.max(...weights);
    elements.forEach((element, i) => { element.style.boxShadow = `inset 0 -3px 0 ${blue(weights[i - first] / largest)}`; });
    const best = weights.map((weight, j) => [weight, j + first]).filter(([weight]) => weight > 0).sort((a, b) => b[0] - a[0]);
    $('drawn').textContent = `${name}: of ${best.length} tokens in its window most from ` +
      best.slice(0, 5).map(([weight, i]) => `${JSON.stringify(tokens[i].text)} ${percent(weight)}`).join(', ') + '.';
    document.querySelectorAll('.heads button').forEach((button, i) => button.setAttribute('aria-pressed', String(i === number)));
  }

  // In a translator the encoder's layers and the source come before the decoder's layers and tokens.
  function showAttention(layers, token) {
    const names = {query_weights: ', queries', key_weights: ', keys', cross_attention_weights: ', source'};
    const source = about.task === 'translation' ? given - 1 : 0, ours = layers.filter(({layer}) => (layer < about.first) === (token < source));
    const heads = ours.flatMap(({layer, place, heads: rows}) => rows.map((weights, h) => ({
      weights, name: `layer ${layer + 1 - (token < source ? 0 : about.first)}, head ${h + 1}${names[place] || ''}`,
      first: writes() ? token + 1 - weights.length : token < source || place.startsWith('cross') ? 0 : source})));
    const buttons = heads.map(({weights, name}, number) => {
      const canvas = make('canvas', {width: String(weights.length), height: '1', 'aria-hidden': 'true'}), pen = canvas.getContext('2d');
      const largest = Math.max(...weights);
      weights.forEach((weight, j) => {
        pen.fillStyle = blue(weight / largest);
        pen.fillRect(j, 0, 1, 1);
      });
      const button = make('button', {type: 'button', 'aria-pressed': 'false'}, make('span', {}, name), canvas);
      button.onclick = () => pick(heads, number);
      return button;
    });
    $('token').append(make('p', {id: 'drawn'}), make('p', {class: 'note'}, 'What each head drew on, from the first token on:'),
                      make('div', {class: 'heads'}, ...buttons));
    if (heads.length) pick(heads, Math.min(picked, heads.length - 1));
  }

  $('tokens').onkeydown = event => {
    const move = {ArrowLeft: chosen - 1, ArrowRight: chosen + 1, Home: 0, End: elements.length - 1}[event.key];
    if (move === undefined) return;
    event.preventDefault();
    choose(move);
  };

  function showAbout() {
    const size = bytes => bytes < 1e6 ? `${show(Math.ceil(bytes / 1e3))} kB` : `${(bytes / 1e6).toFixed(1)} MB`, {state, softmax} = about;
    if (writes())
      $('state').textContent = `After ${show(about.positions)} tokens decoding keeps ${size(state)}` +
        (state < softmax ? `; a softmax model of this size keeps ${size(softmax)}, ${show(softmax / state, 2)} times as much.` : '.');
    for (const element of document.querySelectorAll('.writes')) element.hidden = !writes();
    $('go').textContent = {translation: 'Translate', masked: 'Fill'}[about.task] || 'Continue';
    $('text-label').textContent = {translation: 'A sentence', masked: 'Text with [MASK] where a token is to be guessed'}[about.task] || 'Text';
  }

  function showTokens({tokens: added, written, seconds}) {
    $('tokens').append(...added.map(addToken));
    $('tokens').scrollTop = $('tokens').scrollHeight;
    $('scale').hidden = about.task === 'masked';
    const speed = seconds > 0 ? `, ${Math.round(written / seconds)} tokens/s` : '';
    $('status').textContent = `${given} tokens read, ${tokens.length - given} written${speed}`;
  }

  engine.onmessage = ({data: message}) => {
    if (message.about) { about = message.about; showAbout(); }
    if (message.guesses)
      $('guesses').replaceChildren(...message.guesses.map((best, i) => make('p', {}, `[MASK] ${i + 1}: ` +
        best.map(guess => `${JSON.stringify(guess.token)} ${percent(guess.probability)}`).join('  '))));
    if (message.tokens) showTokens(message);
    if (message.attention && message.token === chosen) showAttention(message.attention, chosen);
    if (message.error) $('status').textContent = message.error;
    if (message.end && $('status').textContent === 'Working …') $('status').textContent = 'Ready.';
    if (message.end || message.error) rest();
  };

  $('form').onsubmit = event => {
    event.preventDefault();
    for (const id of ['tokens', 'token', 'guesses']) $(id).replaceChildren();
    elements.length = tokens.length = given = 0;
    chosen = -1;
    text.decode();
    const typed = $('text').value, begin = about.task === 'translation' ? typed.replace(/\s*\n\s*/g, ' ') : typed;
    order({begin, count: writes() ? count() : 0, temperature: number('temperature'), topP: number('top-p'), seed: number('seed')});
  };
  $('more').onclick = () => order({count: count()});
  $('stop').onclick = () => engine.postMessage({stop: true});
  order({}); // opens the model
}

showSetting();
for (const r of data.runs) resultsOf($('results'), r, data.runs.length > 1);
showCurves();
for (const text of data.samples) $('samples').append(make('pre', {}, text));
$('samples').hidden = !data.samples.length;
if (data.model) showModel(data.model);
