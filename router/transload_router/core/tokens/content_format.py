"""Whether a chat template takes a message's content as text or as a list of parts.

The rule of vLLM 0.32.0 (`renderers/hf.py:_detect_content_format`): a template that loops over a
message's content wants parts. What counts as a message and as its content is read off the syntax
tree, without regard to scope:

* messages: `messages`, and names that some assignment gives it or a slice, filter or test of it;
* a message: the target of a loop over messages;
* content: an attribute or item `content` of a message; in macros, parameters that are given it;
  outside macros, the plain name `content`.
"""

from collections.abc import Iterator

from jinja2 import nodes

from transload_router.core.tokens.messages import OPENAI, STRING


def detect(tree: nodes.Template) -> str:
    """`STRING` or `OPENAI`, for a parsed template."""
    try:
        return OPENAI if any(_content_loops(tree)) else STRING
    except AssertionError:
        # A loop or assignment that unpacks: the engine gives up on such templates, too.
        return STRING


def _content_loops(tree: nodes.Template) -> Iterator[bool]:
    """For each loop in the engine's order: whether it goes over a message's content."""
    messages = list(_message_names(tree))
    in_macros = _macro_parameters(tree, messages)
    for loop in tree.find_all(nodes.For):
        over = loop.iter
        if any(_leads_to(over, name, "content") for name in messages):
            yield _has_plain_target(loop)
        elif isinstance(over, nodes.Name):
            given = in_macros.get(id(loop))
            is_content = over.name in given if given is not None else over.name == "content"
            yield is_content and _has_plain_target(loop)


def _has_plain_target(loop: nodes.For) -> bool:
    assert isinstance(loop.target, nodes.Name)
    return True


def _names_of_messages(tree: nodes.Template) -> list[str]:
    """`messages` and what is assigned from it, breadth first."""
    names = ["messages"]
    waiting = ["messages"]
    while waiting:
        name = waiting.pop(0)
        for assignment in tree.find_all(nodes.Assign):
            if _leads_to(assignment.node, name, None):
                assert isinstance(assignment.target, nodes.Name)
                target = assignment.target.name
                # A name that was seen leads nowhere new; the engine, which goes on, would not end.
                if target not in names:
                    names.append(target)
                    waiting.append(target)
    return names


def _message_names(tree: nodes.Template) -> Iterator[str]:
    names = _names_of_messages(tree)
    for loop in tree.find_all(nodes.For):
        if any(_leads_to(loop.iter, name, None) for name in names):
            assert isinstance(loop.target, nodes.Name)
            yield loop.target.name


def _macro_parameters(tree: nodes.Template, messages: list[str]) -> dict[int, set[str]]:
    """For each loop inside a macro: the macro's parameters that calls give content."""
    by_loop: dict[int, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        given = _given_content(tree, macro, messages)
        for loop in macro.find_all(nodes.For):
            if given:
                by_loop[id(loop)] = given
            else:
                by_loop.setdefault(id(loop), set())
    return by_loop


def _given_content(tree: nodes.Template, macro: nodes.Macro, messages: list[str]) -> set[str]:
    names = [argument.name for argument in macro.args]
    given = set()
    for call in tree.find_all(nodes.Call):
        if not isinstance(call.node, nodes.Name) or call.node.name != macro.name:
            continue
        pairs = [*zip(names, call.args, strict=False), *((k.key, k.value) for k in call.kwargs)]
        for name, value in pairs:
            if name in names and any(_leads_to(value, each, "content") for each in messages):
                given.add(name)
    return given


def _leads_to(node: nodes.Node | None, name: str, member: str | None) -> bool:
    """Whether an expression is a variable, or a member of it, through filters, tests, slices."""
    while True:
        is_sliced = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        if isinstance(node, (nodes.Filter, nodes.Test)) or is_sliced:
            node = node.node  # type: ignore[union-attr]
        else:
            break
    if member is None:
        return _is_variable(node, name)
    if isinstance(node, nodes.Getitem):
        is_member = isinstance(node.arg, nodes.Const) and node.arg.value == member
        return is_member and _is_variable(node.node, name)
    return isinstance(node, nodes.Getattr) and node.attr == member and _is_variable(node.node, name)


def _is_variable(node: nodes.Node | None, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
