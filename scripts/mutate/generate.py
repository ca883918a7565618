"""All mutants of a Rust file at once: each is written into the text behind a switch, `SWITCH::on(NUMBER)`.

Needs `pip install tree-sitter==0.26.1 tree-sitter-rust==0.24.2`.
"""
import re
import tree_sitter
import tree_sitter_rust

PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_rust.language()))

# What is left alone.
UNTOUCHED = {
    'macro_invocation', 'attribute_item', 'inner_attribute_item', 'const_item', 'static_item', 'array_type',
    'type_arguments', 'use_declaration', 'enum_item', 'struct_item', 'macro_definition', 'parameters', 'type_item',
    'mod_item',
}
OPERATORS = {'+': '-', '-': '+', '*': '/', '/': '*', '%': '/', '<<': '>>', '>>': '<<', '|': '&', '&': '|', '^': '|'}
MOVED = {'<': '<=', '<=': '<', '>': '>=', '>=': '>'}
STATEMENTS = {
    'call_expression', 'await_expression', 'try_expression', 'assignment_expression', 'compound_assignment_expr',
}
CONDITIONS = {'call_expression', 'identifier', 'field_expression', 'await_expression', 'macro_invocation'}


def constants(type_):
    """What the body of a function of this type is replaced by."""
    if type_ in ('()', 'bool', 'u64', 'usize', 'u32', 'i64'):
        return {'()': ['()'], 'bool': ['true', 'false']}.get(type_, ['0', '1'])
    for pattern, values in (
        (r'Option<', ['None']), (r'Result<\(\)', ['Ok(())']), (r'Result<bool', ['Ok(true)', 'Ok(false)']),
        (r'Result<Option<', ['Ok(None)']), (r'Vec<', ['Vec::new()']),
    ):
        if re.match(pattern, type_):
            return values
    return []


class Mutator:
    """Numbers the mutants of several files. Those in `unviable`, as (file, byte, what), are left out of the text, and so are
    those that are not `chosen`, by their numbers, where that is given."""

    def __init__(self, switch, unviable, chosen=None):
        self.switch, self.unviable, self.chosen, self.mutants = switch, unviable, chosen, []

    def file(self, name, source):
        self.name, self.source = name, source
        return self.children(PARSER.parse(source).root_node)

    def text(self, node):
        return self.source[node.start_byte:node.end_byte].decode()

    def new(self, node, what, text=None):
        """The switch of a new mutant, or None if it is known not to compile."""
        number, skip = len(self.mutants), (self.name, node.start_byte, what) in self.unviable
        text = re.sub(r'\s+', ' ', text or self.text(node))[:140]
        self.mutants.append({
            'id': number, 'file': self.name, 'line': node.start_point[0] + 1, 'byte': node.start_byte,
            'what': what, 'text': text, 'unviable': skip,
        })
        left_out = skip or (self.chosen is not None and number not in self.chosen)
        return None if left_out else f'{self.switch}::on({number})'

    def children(self, node, replace=None, start=None):
        """The text from `start` to the node's end, with its children mutated: by `replace`, or as usual."""
        out, at = [], node.start_byte if start is None else start
        for child in node.children:
            if child.start_byte >= at:
                done = replace(child) if replace else None
                out += [self.source[at:child.start_byte].decode(), self.mutate(child) if done is None else done]
                at = child.end_byte
        return ''.join(out) + self.source[at:node.end_byte].decode()

    def mutate(self, node):
        kind = node.type
        if not node.is_named or not node.children or kind in UNTOUCHED:
            return self.text(node)
        if kind == 'match_pattern' or kind.endswith('_pattern'):
            return self.text(node)
        if kind == 'impl_item' and re.search('fmt::|Display', self.text(node).split('{')[0]):
            return self.text(node)
        if kind == 'unary_expression' and self.text(node).startswith('!'):
            inner, on = self.mutate(node.named_children[0]), self.new(node, 'delete !')
            return f'!{inner}' if on is None else f'{on[:-1].replace("::on(", "::not(")}, {inner})'
        method = getattr(self, kind, None)
        return method(node) if method else self.children(node)

    def function_item(self, node):
        body, type_ = node.child_by_field_name('body'), node.child_by_field_name('return_type')
        head = self.source[node.start_byte:body.start_byte].decode()
        if re.search(r'\bconst\b.*\bfn\b', head.split('(')[0]) or re.search(r'\bfn (fmt|describe)\b', head):
            return self.text(node)
        name, early = self.text(node.child_by_field_name('name')), ''
        for value in constants(self.text(type_) if type_ else '()'):
            on = self.new(node, f'{name} -> {value}', name)
            early += f'if {on} {{ return {value}; }} ' if on else ''
        return f'{head}{{ {early}{self.children(body)[1:]}'

    def expression_statement(self, node):
        inner, text = self.children(node), self.text(node)
        if node.named_children[0].type not in STATEMENTS or not text.endswith(';') or re.match(r'(Ok|Err|drop)\(', text):
            return inner
        on = self.new(node, 'delete statement')
        return f'if !{on} {{ {inner} }}' if on else inner

    def if_expression(self, node):
        condition = node.child_by_field_name('condition')
        if condition.type not in CONDITIONS or 'planted' in self.text(condition):
            return self.children(node)
        on = self.new(condition, 'negate condition')
        if on is None:
            return self.children(node)
        head = self.source[node.start_byte:condition.start_byte].decode()
        return f'{head}({self.mutate(condition)}) != {on}' + self.children(node, start=condition.end_byte)

    while_expression = if_expression

    def let_chain(self, node):
        def condition(child):
            if not child.is_named or child.type in ('let_condition', 'let_chain') or 'planted' in self.text(child):
                return None
            on, inner = self.new(child, 'condition -> true'), self.mutate(child)
            return f'({on} || ({inner}))' if on else inner

        return self.children(node, condition)

    def match_block(self, node):
        arms = [child for child in node.children if child.type == 'match_arm']
        wild = any(self.text(arm.child_by_field_name('pattern')).strip() == '_' for arm in arms)
        return self.children(node, lambda child: self.arm(child, wild) if child.type == 'match_arm' else None)

    def arm(self, node, wild):
        whole = node.child_by_field_name('pattern')
        condition, pattern, guards = whole.child_by_field_name('condition'), self.text(whole), []
        if condition is not None:
            pattern = self.source[whole.start_byte:condition.start_byte].decode().rstrip().removesuffix('if')
        if wild and pattern.strip() != '_':
            on = self.new(node, 'delete match arm')
            guards += [f'!{on}'] if on else []
        if condition is not None:
            guard = self.mutate(condition)
            if 'let ' not in self.text(condition):
                on = self.new(condition, 'guard -> true')
                guard = f'({on} || ({guard}))' if on else f'({guard})'
            guards.append(guard)
        before = self.source[node.start_byte:whole.start_byte].decode()
        return before + pattern + (' if ' + ' && '.join(guards) if guards else '') + self.children(node, start=whole.end_byte)

    def binary_expression(self, node):
        left, right = node.child_by_field_name('left'), node.child_by_field_name('right')
        if 'planted' in self.text(node):
            return self.text(node)
        op, a, b = self.text(node.child_by_field_name('operator')), self.mutate(left), self.mutate(right)
        if op in ('==', '!='):
            on = self.new(node, f'negate {op}')
            return f'(({a} {op} {b}) != {on})' if on else f'{a} {op} {b}'
        if op in MOVED:
            moved, negated = self.new(node, f'{op} -> {MOVED[op]}'), self.new(node, f'negate {op}')
            if not moved and not negated:
                return f'{a} {op} {b}'
            compared = f'(({a}) {op} ({b}))'
            if moved:
                choice = f'if {moved} {{ l {MOVED[op]} r }} else {{ l {op} r }}'
                compared = f'(match (&({a}), &({b})) {{ (l, r) => {choice} }})'
            return f'({compared} != {negated})' if negated else compared
        if op in ('&&', '||'):
            on = self.new(node, f'{op} -> ' + ('||' if op == '&&' else '&&'))
            same = '!=' if op == '&&' else '=='
            return f'({{ let l: bool = {a}; if l {same} {on} {{ {b} }} else {{ l }} }})' if on else f'{a} {op} {b}'
        if op in OPERATORS:
            on = self.new(node, f'{op} -> {OPERATORS[op]}')
            if on:
                return f'({{ let (l, r) = (({a}), ({b})); if {on} {{ l {OPERATORS[op]} r }} else {{ l {op} r }} }})'
        return f'{a} {op} {b}'
