'use strict';
// Asks the daemon once a second and shows what it says. Everything from the daemon is put in as
// text, never as markup.

const kPeriodMs = 1000;
const kPoints = 600;  // steps that a chart shows
const steps = new Map();  // of the chosen session: number -> step, as long as the page is open
let stepsOf = '';

const byId = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  const svg = ['svg', 'rect', 'polyline', 'text', 'title', 'g'].includes(name);
  const made = svg ? document.createElementNS('http://www.w3.org/2000/svg', name)
                   : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// A protobuf duration, such as "1.5s", in seconds.
const seconds = (duration) => duration ? parseFloat(duration) : 0;

function time(value) {
  if (value >= 100) return `${Math.round(value)} s`;
  if (value >= 1) return `${value.toFixed(1)} s`;
  return `${(1000 * value).toFixed(value < 0.01 ? 2 : 0)} ms`;
}

function bytes(value) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let number = Number(value);
  let unit = 0;
  while (number >= 1024 && unit + 1 < units.length) { number /= 1024; ++unit; }
  return `${number.toFixed(unit === 0 ? 0 : 1)} ${units[unit]}`;
}

const isLive = (session) => ['joining', 'running'].includes(session.state);
const chosen = () => decodeURIComponent(location.hash.slice(1));

function hookOf(session) {
  const hook = session.hook?.comm_hook || 'no';
  const wrapper = session.hook?.comm_wrapper || 'no';
  return wrapper === 'no' ? hook : `${wrapper}(${hook})`;
}

function showHeadline(server, sessions) {
  const live = sessions.filter(isLive);
  const lines = live.map((session) => `${session.name}: ${session.waiting_for}`);
  if (live.length === 0) lines.push('No session is running.');
  if (server.draining) lines.unshift('The daemon drains: it accepts no new members.');
  byId('headline').textContent = lines.slice(0, 8).join('\n') +
      (lines.length > 8 ? `\nand ${lines.length - 8} more` : '');
  const slow = live.filter((session) => session.slow)
      .map((session) => `${session.name}: ${session.slow}`);
  byId('slow').hidden = slow.length === 0;
  byId('slow').textContent = slow.join('; ');
  byId('server').textContent = `${server.version}, up ${time(seconds(server.uptime))}, ` +
      `${server.connections} connections, ${bytes(server.reserved_bytes)} of ` +
      `${bytes(server.memory_limit_bytes)} reserved`;
  document.title = `gradwired: ${live.length} running`;
}

function showSessions(sessions) {
  byId('no-sessions').hidden = sessions.length > 0;
  const rows = sessions.map((session) => {
    const name = element('button', {class: 'name', type: 'button'}, session.name);
    name.addEventListener('click', () => {
      location.hash = encodeURIComponent(session.name);
      refresh();
    });
    const connected = session.members.filter((member) => member.state === 'connected').length;
    const number = {class: 'number'};
    const text = {class: session.state === 'failed' ? 'text bad' : 'text'};
    return element('tr', {},
        element('th', {scope: 'row'}, name),
        element('td', {}, session.state),
        element('td', number, session.step),
        element('td', number, `${connected}/${session.world_size}`),
        element('td', {}, hookOf(session)),
        element('td', number, bytes(session.contribution_bytes_total)),
        element('td', number, bytes(session.result_bytes_total)),
        element('td', text, session.waiting_for));
  });
  replaceRows(byId('sessions'), rows);
}

// Keeps the keyboard's focus, which is on a row's button.
function replaceRows(table, rows) {
  const body = table.tBodies[0];
  const focused = [...body.querySelectorAll('button')].indexOf(document.activeElement);
  body.replaceChildren(...rows);
  if (focused >= 0) body.querySelectorAll('button')[focused]?.focus();
}

function chart(title, points, format) {
  const last = points.at(-1) ?? 0;
  const top = Math.max(...points, 1e-9);
  const at = (value, i) => `${(i * 100 / Math.max(points.length - 1, 1)).toFixed(2)},` +
      `${(40 - 38 * value / top).toFixed(2)}`;
  const label = `${title}: now ${format(last)}, at most ${format(top)} in ${points.length} steps`;
  return element('figure', {},
      element('figcaption', {}, element('span', {}, title), element('strong', {}, format(last))),
      element('svg', {viewBox: '0 0 100 42', preserveAspectRatio: 'none', height: 70, role: 'img',
                      'aria-label': label},
              element('polyline', {class: 'plot', points: points.map(at).join(' ')})),
      element('span', {class: 'axis'}, `${points.length} steps, at most ${format(top)}`));
}

function showCharts(session) {
  const known = [...steps.values()];
  const charts = [
    chart('Step time', known.map((step) => seconds(step.duration)), time),
    chart('Straggler gap', known.map((step) => seconds(step.straggler_gap)), time),
    chart('Waiting', known.map((step) => step.members.reduce(
        (sum, member) => sum + seconds(member.compute_wait) + seconds(member.link_wait),
        seconds(step.daemon_wait))), time),
  ];
  const reports = session.buckets.map((bucket) => bucket.report);
  const sum = (field) => reports.reduce((all, report) => all + Number(report[field] ?? 0), 0);
  const facts = [];
  if (sum('gradient_bytes') > 0) {
    const saved = 100 * (1 - sum('sent_bytes') / sum('gradient_bytes'));
    facts.push(['Bytes saved by the hook', `${saved.toFixed(1)} %`]);
  }
  const gradient = Math.hypot(...reports.map((report) => report.gradient_norm ?? 0));
  if (gradient > 0) {
    const residual = Math.hypot(...reports.map((report) => report.residual_norm ?? 0));
    facts.push(['Residual / gradient', (residual / gradient).toFixed(3)]);
  }
  for (const [title, value] of facts) {
    charts.push(element('figure', {}, element('figcaption', {}, element('span', {}, title),
                                              element('strong', {}, value))));
  }
  byId('charts').replaceChildren(...charts);
}

// One row for each member, one column for each step, all on one scale of time.
function showTimeline(recent) {
  if (recent.length === 0) {
    byId('timeline').replaceChildren(element('p', {class: 'legend'}, 'No step has ended yet.'));
    return;
  }
  const members = recent.at(-1).members.length;
  const row = members > 50 ? 5 : 14;
  const left = 60;
  const width = 1000;
  const total = recent.reduce((sum, step) => sum + Math.max(seconds(step.duration), 1e-6), 0);
  const svg = element('svg', {viewBox: `0 0 ${width} ${members * row + 22}`, role: 'img',
                              'aria-label': describe(recent)});
  for (let rank = 0; rank < members; ++rank) {
    if (members > 50 && rank % 10 !== 0) continue;
    svg.append(element('text', {x: 0, y: rank * row + 11}, `rank ${rank}`));
  }
  let x = left;
  for (const step of recent) {
    const length = Math.max(seconds(step.duration), 1e-6);
    const scale = (width - left) / total;
    const gap = 2;
    step.members.forEach((member, rank) => {
      const until = (value) => Math.min(seconds(value), length);
      const announced = until(member.announced);
      const sent = Math.max(until(member.sent), announced);
      const parts = [['computes', 0, announced], ['sends', announced, sent], ['waits', sent, length]];
      for (const [kind, from, to] of parts) {
        const bar = Math.max((to - from) * scale - (kind === 'waits' ? gap : 0), 0);
        if (bar <= 0) continue;
        svg.append(element('rect', {class: kind, x: x + from * scale, y: rank * row, width: bar,
                                    height: row - (row > 6 ? 3 : 1)},
                           element('title', {}, `step ${step.step}, rank ${rank} ${kind} for ` +
                                                time(to - from))));
      }
    });
    svg.append(element('text', {x, y: members * row + 14}, `${step.step}`));
    x += length * scale;
  }
  byId('timeline').replaceChildren(svg);
}

function describe(recent) {
  const step = recent.at(-1);
  const worst = step.members.reduce((most, member, rank) =>
      seconds(member.announced) > seconds(step.members[most].announced) ? rank : most, 0);
  return `Timeline of ${recent.length} steps. In step ${step.step}, which took ` +
      `${time(seconds(step.duration))}, rank ${worst} announced its last bucket last, after ` +
      `${time(seconds(step.members[worst]?.announced))}`;
}

function showMembers(session) {
  const wait = (member) => seconds(member.compute_wait_total) + seconds(member.link_wait_total);
  const all = session.members.reduce((sum, member) => sum + wait(member),
                                     seconds(session.daemon_wait_total));
  const number = {class: 'number'};
  const rows = session.members.map((member) => {
    const share = all > 0 ? wait(member) / all : 0;
    const bar = element('span', {class: 'bar', 'aria-hidden': 'true'});
    bar.style.width = `${(8 * share).toFixed(2)}rem`;
    return element('tr', {},
        element('th', {scope: 'row'}, member.rank),
        element('td', {}, member.state),
        element('td', {}, member.transport || '–'),
        element('td', {}, member.last_heard ? `${time(seconds(member.last_heard))} ago` : '–'),
        element('td', number, bytes(member.contribution_bytes_total)),
        element('td', number, time(seconds(member.compute_wait_total))),
        element('td', number, time(seconds(member.link_wait_total))),
        element('td', {}, bar, ` ${(100 * share).toFixed(0)} %`));
  });
  replaceRows(byId('members'), rows);
}

function showSession(session) {
  const key = `${session.name} ${session.generation}`;
  if (key !== stepsOf) steps.clear();
  stepsOf = key;
  for (const step of session.recent_steps) steps.set(step.step, step);
  for (const number of steps.keys()) {
    if (steps.size <= kPoints) break;
    steps.delete(number);
  }
  byId('session').hidden = false;
  byId('session-title').textContent = `Session ${session.name}`;
  byId('session-sentence').textContent = session.waiting_for;
  byId('session-slow').hidden = !session.slow;
  byId('session-slow').textContent = session.slow;
  showCharts(session);
  showTimeline(session.recent_steps);
  showMembers(session);
}

async function ask(path) {
  const response = await fetch(path, {cache: 'no-store'});
  if (response.status === 404) return null;
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

async function refresh() {
  const {server, sessions} = await ask('/api/v1/status');
  showHeadline(server, sessions);
  showSessions(sessions);
  const name = chosen() || sessions.find(isLive)?.name || sessions[0]?.name;
  const session = name ? await ask(`/api/v1/session/${encodeURIComponent(name)}`) : null;
  byId('session').hidden = session === null;
  if (session !== null) showSession(session);
  document.body.dataset.shown = 'yes';
}

async function loop() {
  try {
    if (!document.hidden) await refresh();
  } catch (error) {
    byId('headline').textContent = `The daemon does not answer: ${error.message}`;
  }
  setTimeout(loop, kPeriodMs);
}

window.addEventListener('hashchange', refresh);
loop();
