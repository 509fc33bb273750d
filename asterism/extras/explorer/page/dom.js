// Elements, in one line each. Text is always text: nothing from the server becomes markup.

export const byId = id => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter(child => child != null && child !== false));
  return element;
}

export function drawn(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function say(text) { byId("said").textContent = text; }

let hiding;
export function complain(text) {
  const place = byId("trouble");
  place.textContent = text;
  place.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => { place.hidden = true; }, 7000);
}

// A row of buttons of which one is chosen; arrow keys go from one to the next, as in a radio group.
export function segments(group, options, chosen, choose) {
  group.setAttribute("role", "radiogroup");
  group.classList.add("segments");
  const buttons = options.map(([value, text, hint]) => make("button", {
    type: "button", role: "radio", "aria-checked": String(value === chosen), tabindex: value === chosen ? 0 : -1,
    "data-value": value, title: hint,
    onclick: event => { pick(event.currentTarget); choose(value); },
    onkeydown: event => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const next = buttons[(buttons.indexOf(event.currentTarget) + step + buttons.length) % buttons.length];
      next.focus();
      next.click();
    },
  }, text));
  function pick(button) {
    for (const each of buttons) {
      each.setAttribute("aria-checked", String(each === button));
      each.tabIndex = each === button ? 0 : -1;
    }
  }
  group.replaceChildren(...buttons);
  return group;
}
